"""What several tests need: real brokers, free ports, waiting with a deadline."""
