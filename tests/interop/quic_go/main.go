// A Fujin client written on quic-go from the protocol's document, which does one round of everything and reports it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	connectWriter = 1
	connectReader = 2
	write         = 3
	begin         = 4
	commit        = 5
	rollback      = 6
	fetch         = 7
	ack           = 8
	nack          = 9
	disconnect    = 10
	ping          = 11
)

var (
	address    = flag.String("address", "", "host:port of the broker, or of what stands before it")
	authority  = flag.String("ca", "", "file of the certificates to believe")
	topic      = flag.String("topic", "interop", "topic to write to and read from")
	messages   = flag.Int("messages", 100, "how many to write outside of transactions")
	ownID      = flag.Int("own-id", 0, "size of this client's connection id")
	migrate    = flag.Bool("migrate", false, "go on from another socket when half is written")
	newVersion = flag.Bool("version-2-first", false, "ask for QUIC version 2 first")
	reference  = flag.Bool("reference", false, "speak as the original client does")
	patience   = flag.Duration("patience", 2*time.Minute, "how long all of it may take")
)

// report is what is told in the end.
type report struct {
	Confirmed  int    `json:"confirmed"`
	Received   int    `json:"received"`
	Missing    int    `json:"missing"`
	Disordered int    `json:"disordered"`
	Settled    int    `json:"settled"`
	Fetched    int    `json:"fetched"`
	Pings      int    `json:"pings"`
	Migrated   bool   `json:"migrated"`
	Version    string `json:"version"`
}

func main() {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *patience)
	defer cancel()
	var told report
	if err := round(ctx, &told); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(told)
}

func round(ctx context.Context, told *report) error {
	transport, err := newTransport()
	if err != nil {
		return err
	}
	connection, err := dial(ctx, transport)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	told.Version = connection.ConnectionState().Version.String()
	go answerPings(ctx, connection, &told.Pings)
	if err := writeAll(ctx, connection, told); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := transact(ctx, connection); err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	if err := subscribe(ctx, connection, told); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := pull(ctx, connection, told); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return connection.CloseWithError(0, "done")
}

func newTransport() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	if *ownID > 0 {
		transport.ConnectionIDLength = *ownID
	}
	return transport, nil
}

func dial(ctx context.Context, transport *quic.Transport) (*quic.Conn, error) {
	believed := x509.NewCertPool()
	pem, err := os.ReadFile(*authority)
	if err != nil {
		return nil, err
	}
	if !believed.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + *authority)
	}
	versions := []quic.Version{quic.Version1}
	if *newVersion {
		versions = []quic.Version{quic.Version2, quic.Version1}
	}
	to, err := net.ResolveUDPAddr("udp4", *address)
	if err != nil {
		return nil, err
	}
	security := &tls.Config{RootCAs: believed, ServerName: "localhost", NextProtos: []string{"fujin"}}
	settings := &quic.Config{Versions: versions, MaxIdleTimeout: 30 * time.Second}
	if *ownID == 0 && !*migrate {
		// The way nearly everybody does it, on a transport of its own with an empty connection id.
		return quic.DialAddr(ctx, *address, security, settings)
	}
	return transport.Dial(ctx, to, security, settings)
}

func answerPings(ctx context.Context, connection *quic.Conn, count *int) {
	for {
		stream, err := connection.AcceptStream(ctx)
		if err != nil {
			return
		}
		if asked, _ := io.ReadAll(stream); bytes.Equal(asked, []byte{ping}) {
			*count++
			_, _ = stream.Write([]byte{ping})
		}
		_ = stream.Close()
	}
}

func writeAll(ctx context.Context, connection *quic.Conn, told *report) error {
	stream, err := openWriter(ctx, connection)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		for number := range *messages {
			if *migrate && number == *messages/2 {
				if err := move(ctx, connection); err != nil {
					failed <- fmt.Errorf("migrate: %w", err)
					return
				}
				told.Migrated = true
			}
			if _, err := stream.Write(encodeWrite(uint32(number), value(number))); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for number := range *messages {
		if err := confirmed(stream, 2, uint32(number)); err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
		told.Confirmed++
	}
	if err := <-failed; err != nil {
		return err
	}
	return leave(stream)
}

func move(ctx context.Context, connection *quic.Conn) error {
	other, err := newTransport()
	if err != nil {
		return err
	}
	path, err := connection.AddPath(other)
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return err
	}
	return path.Switch()
}

func transact(ctx context.Context, connection *quic.Conn) error {
	stream, err := openWriter(ctx, connection)
	if err != nil {
		return err
	}
	for _, end := range []byte{rollback, commit} {
		request := binary.BigEndian.AppendUint32([]byte{begin}, 1)
		for number := range 3 {
			request = append(request, encodeWrite(uint32(2+number), value(*messages+number))...)
		}
		request = binary.BigEndian.AppendUint32(append(request, end), 9)
		if _, err := stream.Write(request); err != nil {
			return err
		}
		for _, expected := range [][2]uint32{{3, 1}, {2, 2}, {2, 3}, {2, 4}, {uint32(end) - 1, 9}} {
			if err := confirmed(stream, byte(expected[0]), expected[1]); err != nil {
				return err
			}
		}
	}
	return leave(stream)
}

// subscribe reads everything by push and acknowledges each message; replies come in between.
func subscribe(ctx context.Context, connection *quic.Conn, told *report) error {
	stream, err := openReader(ctx, connection, 1)
	if err != nil {
		return err
	}
	total := *messages + 3
	seen := make([]bool, total)
	last := -1
	for told.Settled < total {
		code, err := stream.in.ReadByte()
		if err != nil {
			return err
		}
		if code == ack {
			if err := settled(stream); err != nil {
				return err
			}
			told.Settled++
			continue
		}
		if code != 6 {
			return fmt.Errorf("response %d", code)
		}
		id, err := stream.readString()
		if err != nil {
			return err
		}
		got, err := stream.readString()
		if err != nil {
			return err
		}
		number := numberOf(got)
		if number < 0 || number >= total || !bytes.Equal(got, value(number)) {
			return fmt.Errorf("a message nobody wrote: %q", got)
		}
		if number <= last {
			told.Disordered++
		}
		last = number
		if !seen[number] {
			told.Received++
		}
		seen[number] = true
		request := binary.BigEndian.AppendUint32([]byte{ack}, uint32(number))
		request = appendString(binary.BigEndian.AppendUint32(request, 1), id)
		if _, err := stream.Write(request); err != nil {
			return err
		}
	}
	for _, here := range seen {
		if !here {
			told.Missing++
		}
	}
	return leave(stream)
}

// settled reads the reply to an ACK or NACK of one message, behind its code.
func settled(stream *conversation) error {
	if _, err := stream.readUint32(); err != nil {
		return err
	}
	if err := stream.readError(); err != nil {
		return err
	}
	if count, err := stream.readUint32(); err != nil || count != 1 {
		return fmt.Errorf("%d results: %w", count, err)
	}
	if _, err := stream.readString(); err != nil {
		return err
	}
	if *reference {
		return stream.readError()
	}
	success, err := stream.in.ReadByte()
	if err == nil && success != 1 {
		err = errors.New("not settled")
	}
	return err
}

// pull gets one more message by FETCH, gives it back with NACK, and gets it again.
func pull(ctx context.Context, connection *quic.Conn, told *report) error {
	writer, err := openWriter(ctx, connection)
	if err != nil {
		return err
	}
	if _, err := writer.Write(encodeWrite(1, []byte("last"))); err != nil {
		return err
	}
	if err := confirmed(writer, 2, 1); err != nil {
		return err
	}
	stream, err := openReader(ctx, connection, 2)
	if err != nil {
		return err
	}
	for _, outcome := range []byte{nack, ack} {
		id, err := fetchOne(stream)
		if err != nil {
			return err
		}
		told.Fetched++
		request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{outcome}, 8), 1)
		if _, err := stream.Write(appendString(request, id)); err != nil {
			return err
		}
		if code, err := stream.in.ReadByte(); err != nil || code != outcome {
			return fmt.Errorf("response %d to %d: %w", code, outcome, err)
		}
		if err := settled(stream); err != nil {
			return err
		}
	}
	if err := leave(stream); err != nil {
		return err
	}
	return leave(writer)
}

// fetchOne asks until there is a message: one that was given back is due again only after a while.
func fetchOne(stream *conversation) ([]byte, error) {
	for {
		request := binary.BigEndian.AppendUint32([]byte{fetch}, 7)
		if _, err := stream.Write(binary.BigEndian.AppendUint32(request, 1)); err != nil {
			return nil, err
		}
		err := confirmed(stream, fetch, 7)
		if err != nil && *reference && err.Error() == "no messages" {
			continue
		}
		if err != nil {
			return nil, err
		}
		count, err := stream.readUint32()
		if err != nil {
			return nil, err
		}
		if count == 0 {
			continue
		}
		id, err := stream.readString()
		if err != nil {
			return nil, err
		}
		if got, err := stream.readString(); err != nil || string(got) != "last" {
			return nil, fmt.Errorf("fetched %q: %w", got, err)
		}
		return id, nil
	}
}

// conversation is a stream and what of it was not read yet.
type conversation struct {
	*quic.Stream
	in *bufio.Reader
}

func open(ctx context.Context, connection *quic.Conn, greeting []byte) (*conversation, error) {
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = stream.SetDeadline(deadline)
	}
	_, err = stream.Write(greeting)
	return &conversation{stream, bufio.NewReader(stream)}, err
}

func openWriter(ctx context.Context, connection *quic.Conn) (*conversation, error) {
	return open(ctx, connection, []byte{connectWriter, 0, 0, 0, 0})
}

func openReader(ctx context.Context, connection *quic.Conn, kind byte) (*conversation, error) {
	stream, err := open(ctx, connection, appendString([]byte{connectReader, kind, 0}, []byte(*topic)))
	if err != nil {
		return nil, err
	}
	if code, err := stream.in.ReadByte(); err != nil || code != 1 {
		return nil, fmt.Errorf("response %d to CONNECT READER: %w", code, err)
	}
	return stream, stream.readError()
}

// leave says goodbye and waits for the answer and the end.
func leave(stream *conversation) error {
	if _, err := stream.Write([]byte{disconnect}); err != nil {
		return err
	}
	rest, err := io.ReadAll(stream.in)
	if err == nil && !bytes.Equal(rest, []byte{disconnect}) {
		err = fmt.Errorf("%v instead of a goodbye", rest)
	}
	_ = stream.Close()
	return err
}

// confirmed reads a reply up to its error.
func confirmed(stream *conversation, response byte, id uint32) error {
	code, err := stream.in.ReadByte()
	if err != nil {
		return err
	}
	got, err := stream.readUint32()
	if err != nil {
		return err
	}
	if code != response || got != id {
		return fmt.Errorf("response %d to %d instead of %d to %d", code, got, response, id)
	}
	return stream.readError()
}

func (c *conversation) readUint32() (uint32, error) {
	var four [4]byte
	_, err := io.ReadFull(c.in, four[:])
	return binary.BigEndian.Uint32(four[:]), err
}

func (c *conversation) readString() ([]byte, error) {
	size, err := c.readUint32()
	if err != nil {
		return nil, err
	}
	if size > 1<<20 {
		return nil, fmt.Errorf("a string of %d bytes", size)
	}
	data := make([]byte, size)
	_, err = io.ReadFull(c.in, data)
	return data, err
}

func (c *conversation) readError() error {
	flag, err := c.in.ReadByte()
	if err != nil || flag == 0 {
		return err
	}
	text, err := c.readString()
	if err != nil {
		return err
	}
	return errors.New(string(text))
}

func appendString(to, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(data))), data...)
}

func encodeWrite(id uint32, message []byte) []byte {
	request := binary.BigEndian.AppendUint32([]byte{write}, id)
	request = appendString(request, []byte(*topic))
	if !*reference {
		request = append(request, 0, 0)
	}
	return appendString(request, message)
}

func value(number int) []byte {
	return fmt.Appendf(nil, "message %d %s", number, bytes.Repeat([]byte{'x'}, number%97))
}

func numberOf(got []byte) int {
	number := -1
	_, _ = fmt.Sscanf(string(got), "message %d ", &number)
	return number
}
