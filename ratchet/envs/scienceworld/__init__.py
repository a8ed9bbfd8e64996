"""ScienceWorld: its engine in one JVM a worker, the official split, verified gold paths, and an expert that thinks where it can."""
