"""grpcq: gRPC calls as messages in queues, their envelope, and our service that carries them over the network.

`grpcq_pb2` and `queues_pb2` are generated from the files in `proto/` by `proto/generate.py`.
"""
