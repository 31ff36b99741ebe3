"""What a step does: sequences, the slice loop, sampling, fingerprints, and the host that runs it all on a thread.

Knows models through their protocol and the messages of `strata.messages`.  Decides nothing about whose turn it is
beyond how reading and decoding share the time of one step message, and owns no ledger of pages.
"""
