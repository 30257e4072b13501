"""Fujin: a byte protocol with confirmed writes, transactions, push and pull readers; a QUIC stream for each of them."""
