"""All four doors on one broker, in virtual time, on a network and a disk in memory."""
