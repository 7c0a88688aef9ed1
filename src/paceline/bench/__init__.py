"""Measuring: benchmark models, peers, timed runs, reports. A number never stands without what it ran on."""
