"""Measuring: benchmark models, peers, timed runs and reports. A number is never alone: rows carry what they ran on."""
