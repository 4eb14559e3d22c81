"""Models with one interface: a `Model` starts a `Session` on a prompt; it extends, selects and rolls back."""
