"""A store whose process is killed, or whose machine loses power, again and again."""
