class Hybrid: pass
