"""The server's side: MQTT to SQL, the embedded broker, and `up`, which starts all of it."""
