#!/usr/bin/env python3
"""usage: generate_grpc.py ADDRESS [PROMPT]

Streams an answer of inferd's gRPC server. ADDRESS has the form unix:/run/inferd/inferd.sock or 127.0.0.1:50051. The
stubs of sluice.inference.v1 must be on PYTHONPATH; a build has them in build/release/python.
"""
import sys

import grpc
from sluice.inference.v1 import inference_pb2, inference_pb2_grpc


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    request = inference_pb2.GenerateStreamRequest()
    request.spec.text = sys.argv[2] if len(sys.argv) > 2 else "The film is a story about a young man who"
    request.spec.stopping.max_tokens = 32
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            for response in inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(request):
                if response.HasField("delta"):
                    print(response.delta.text, end="", flush=True)
                elif response.HasField("finished"):
                    print("\n%d tokens" % response.finished.usage.completion_tokens)
        except grpc.RpcError as error:
            raise SystemExit("refused: %s" % error.details())


if __name__ == "__main__":
    main()
