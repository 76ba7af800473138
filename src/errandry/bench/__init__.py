"""The measurements of `errandry bench`: throughput, latency and recovery, compared with raw writes."""
