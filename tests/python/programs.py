"""Code that several tests run in processes of their own."""

# Requests of every kind that a thread serves itself; the first time they are not.
HITS = """
def hits():
    for _ in range(100):
        gpupool.host.handle()
        gpupool.host.lease().release()
        gpupool.empty(1000)
"""
