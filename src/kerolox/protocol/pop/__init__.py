"""Text forms of POP: handles, the three strings of an answer, names of retry topics, records of the revive
topic."""
