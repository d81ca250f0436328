// usage: generate_grpc ADDRESS [PROMPT [CA.pem CERTIFICATE.pem KEY.pem]]
//
// Streams an answer of inferd's gRPC server to stdout. ADDRESS has the form unix:/run/inferd/inferd.sock or
// 127.0.0.1:50051; with the three files the connection uses TLS with a client certificate.
//
// Thread safety: a single-threaded program.
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "sluice/inference/v1/inference.grpc.pb.h"

namespace {

namespace v1 = sluice::inference::v1;

std::string Read(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3 && argc != 6) {
    std::cerr << "usage: generate_grpc ADDRESS [PROMPT [CA.pem CERTIFICATE.pem KEY.pem]]\n";
    return 2;
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (argc == 6) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = Read(argv[3]);
    tls.pem_cert_chain = Read(argv[4]);
    tls.pem_private_key = Read(argv[5]);
    credentials = grpc::SslCredentials(tls);
  }
  const auto stub = v1::InferenceService::NewStub(grpc::CreateChannel(argv[1], credentials));

  v1::GenerateStreamRequest request;
  request.mutable_spec()->set_text(argc > 2 ? argv[2] : "The film is a story about a young man who");
  request.mutable_spec()->mutable_stopping()->set_max_tokens(32);
  grpc::ClientContext context;
  const auto stream = stub->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  while (stream->Read(&response)) {
    if (response.has_delta()) {
      std::cout << response.delta().text() << std::flush;
    } else if (response.has_finished()) {
      std::cout << "\n" << response.finished().usage().completion_tokens() << " tokens\n";
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    std::cerr << "refused: " << status.error_message() << "\n";
    return 1;
  }
  return 0;
}
