"""What `errandry bench` measures: a store as programs and workers meet it, beside its own single writes."""
