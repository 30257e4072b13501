"""Fujin: a byte protocol with confirmed writes, transactions, push and pull readers; one QUIC stream for each of them."""
