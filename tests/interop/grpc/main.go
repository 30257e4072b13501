// A grpc-go client: sends bytes to methods of a server and prints what came of it, one line of JSON a call.
//
//	client -at 127.0.0.1:50051 -key KEY -unary /pkg.Service/Name -calls 100 -size 1000
//	client -at 127.0.0.1:50051 -key KEY -stream /pkg.Service/Name -calls 100 -size 1000
//
// A method is expected to send back what it got.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw is a codec that passes bytes on as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

var (
	at      = flag.String("at", "", "host:port")
	key     = flag.String("key", "", "the API key")
	ca      = flag.String("ca", "", "whose certificates are trusted; empty: no TLS")
	cert    = flag.String("cert", "", "a certificate of our own, with its key")
	unary   = flag.String("unary", "", "a method for single calls")
	stream  = flag.String("stream", "", "a method for one stream")
	calls   = flag.Int("calls", 1, "how many")
	size    = flag.Int("size", 0, "bytes of each")
	workers = flag.Int("workers", 1, "how many at a time")
	gzip    = flag.Bool("gzip", false, "pack what is sent")
	body    = flag.String("body", "", "a file to send instead")
)

func main() {
	flag.Parse()
	encoding.RegisterCodec(raw{})
	connection, err := grpc.NewClient(*at, grpc.WithTransportCredentials(secrets()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if *key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*key)
	}
	if *unary != "" {
		single(ctx, connection)
	}
	if *stream != "" {
		streamed(ctx, connection)
	}
}

func secrets() credentials.TransportCredentials {
	if *ca == "" {
		return insecure.NewCredentials()
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		fail(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: pool}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *cert)
		if err != nil {
			fail(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config)
}

func payload(i int) []byte {
	if *body != "" {
		data, err := os.ReadFile(*body)
		if err != nil {
			fail(err)
		}
		return data
	}
	return bytes.Repeat([]byte{byte(i)}, *size)
}

func single(ctx context.Context, connection *grpc.ClientConn) {
	options := []grpc.CallOption{}
	if *gzip {
		options = append(options, grpc.UseCompressor("gzip"))
	}
	var lock sync.Mutex
	var all sync.WaitGroup
	same, failed := 0, map[string]int{}
	turns := make(chan int, *calls)
	for i := range *calls {
		turns <- i
	}
	close(turns)
	for range *workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range turns {
				sent, got := payload(i), []byte{}
				err := connection.Invoke(ctx, *unary, &sent, &got, options...)
				lock.Lock()
				if err != nil {
					failed[status.Code(err).String()+": "+status.Convert(err).Message()]++
				} else if bytes.Equal(sent, got) {
					same++
				}
				lock.Unlock()
			}
		}()
	}
	all.Wait()
	tell(map[string]any{"same": same, "failed": failed})
}

func streamed(ctx context.Context, connection *grpc.ClientConn) {
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	call, err := connection.NewStream(ctx, description, *stream)
	if err != nil {
		fail(err)
	}
	go func() {
		for i := range *calls {
			sent := payload(i)
			if call.SendMsg(&sent) != nil {
				return
			}
		}
		call.CloseSend()
	}()
	same, got := 0, []byte{}
	for err = call.RecvMsg(&got); err == nil; err = call.RecvMsg(&got) {
		if bytes.Equal(got, payload(same)) {
			same++
		}
	}
	ended := ""
	if err != io.EOF {
		ended = status.Code(err).String() + ": " + status.Convert(err).Message()
	}
	tell(map[string]any{"same": same, "ended": ended})
}

func tell(found map[string]any) {
	if json.NewEncoder(os.Stdout).Encode(found) != nil {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
