"""Where sequences keep what the model needs again: KV blocks, recurrent slots, host memory behind both."""
