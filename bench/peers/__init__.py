"""Run the same work on Errandry and on other job systems, each in its own environment, taking turns.

python -m bench.peers                      all of them, in about seven minutes
python -m bench.peers --only huey,rq       only these, and Errandry
"""
