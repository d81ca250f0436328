// usage: generate_grpc ADDRESS [PROMPT [CA.pem CERTIFICATE.pem KEY.pem]]
//
// Prints an answer of inferd's gRPC door as it comes. ADDRESS is as unix:/run/inferd/inferd.sock or
// 127.0.0.1:50051; with the three files the connection is TLS and the client shows its certificate.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	pb "sluice/inference/v1"
)

// fail ends the program with what went wrong.
func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "refused:", err)
		os.Exit(1)
	}
}

func security(files []string) grpc.DialOption {
	if len(files) == 0 {
		return grpc.WithInsecure()
	}
	authority, err := os.ReadFile(files[0])
	fail(err)
	own, err := tls.LoadX509KeyPair(files[1], files[2])
	fail(err)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{own}}
	return grpc.WithTransportCredentials(credentials.NewTLS(config))
}

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 && len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: generate_grpc ADDRESS [PROMPT [CA.pem CERTIFICATE.pem KEY.pem]]")
		os.Exit(2)
	}
	prompt, files := "The film is a story about a young man who", []string(nil)
	if len(os.Args) > 2 {
		prompt, files = os.Args[2], os.Args[3:]
	}
	connection, err := grpc.Dial(os.Args[1], security(files))
	fail(err)
	defer connection.Close()

	spec := &pb.GenerationSpec{
		Prompt:   &pb.GenerationSpec_Text{Text: prompt},
		Stopping: &pb.StoppingParams{MaxTokens: proto.Uint32(32)},
	}
	stream, err := pb.NewInferenceServiceClient(connection).GenerateStream(
		context.Background(), &pb.GenerateStreamRequest{Spec: spec})
	fail(err)
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return
		}
		fail(err)
		if delta := response.GetDelta(); delta != nil {
			fmt.Print(delta.Text)
		} else if finished := response.GetFinished(); finished != nil {
			fmt.Printf("\n%d tokens\n", finished.Usage.CompletionTokens)
		}
	}
}
