"""`paceline train target`: a small hybrid from text and dialogues."""
