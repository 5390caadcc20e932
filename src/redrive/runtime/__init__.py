"""What runs, waits or talks. Gets a Store and never imports one."""
