"""What the device and the server must agree on: records, wire format, sketches, arithmetic."""

__version__ = "0.1.0"
