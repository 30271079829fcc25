"""What the Python client can do, told against our servers and, unchanged, against Apache's."""
