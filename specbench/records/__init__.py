"""Records: what runs leave on disk, written whole or not at all, and read back as one table. Independent of models."""
