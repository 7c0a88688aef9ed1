"""Where sequences keep what the model needs again: KV blocks, recurrent slots, and host memory behind both."""
