"""Other engines that a benchmark runs beside ours, behind one small contract (`base.Engine`)."""
