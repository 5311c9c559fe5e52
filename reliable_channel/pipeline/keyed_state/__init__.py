"""State kept by Spark for many keys: in buckets, with the times at which a key has something due."""
