"""Where jobs live. A store applies what the core decided; it never decides."""
