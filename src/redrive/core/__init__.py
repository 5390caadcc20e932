"""The pure core: decides, never does. No I/O, no clock, no randomness."""
