// The original Fujin client, as it was when the document was written, put through everything it can do.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ValerySidorin/fujin/client"
	"github.com/quic-go/quic-go"
)

var (
	address   = flag.String("address", "", "host:port of the broker")
	authority = flag.String("ca", "", "file of the certificates to believe")
)

const patience = 5 * time.Second

// check is one thing to try; connections are its own, so that what breaks one breaks no other.
type check struct {
	name string
	try  func(*client.Conn) error
}

func main() {
	flag.Parse()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	told := map[string]string{}
	var lock sync.Mutex
	var all sync.WaitGroup
	for _, each := range checks() {
		all.Add(1)
		go func() {
			defer all.Done()
			outcome := "held"
			if err := alone(each); err != nil {
				outcome = err.Error()
			}
			lock.Lock()
			defer lock.Unlock()
			told[each.name] = outcome
		}()
	}
	all.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(told)
}

func alone(each check) error {
	connection, err := dial()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- each.try(connection) }()
	select {
	case err = <-failed:
	case <-time.After(4 * patience):
		err = errors.New("no end of it")
	}
	return errors.Join(err, connection.Close())
}

func dial() (*client.Conn, error) {
	believed := x509.NewCertPool()
	pem, err := os.ReadFile(*authority)
	if err != nil {
		return nil, err
	}
	believed.AppendCertsFromPEM(pem)
	security := &tls.Config{RootCAs: believed, ServerName: "localhost", NextProtos: []string{"fujin"}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The client listens for pings for as long as its context lasts, so that must not end with the dialling.
	made, err := client.Connect(context.Background(), *address, security, &quic.Config{}, client.WithTimeout(patience))
	if err != nil {
		return nil, err
	}
	return made, ctx.Err()
}

func checks() []check {
	found := []check{
		{"transaction", transaction},
		{"rolled back", rolledBack},
		{"invalid transaction states", invalidStates},
		{"fetch in vain", fetchInVain},
		{"fetch, nack, fetch again, ack", fetchAndSettle},
		{"settling twice", settleTwice},
		{"an empty message arrives", emptyArrives},
		{"one byte within a fetch", oneByte},
		{"a refused write, then another", refusedWrite},
		{"pinged", pinged},
		{"reader of no topic", noTopic},
	}
	for _, size := range []int{0, 1, 511, 512, 1 << 10, 65_535, 65_536, 65_537, 70_000, 131_072, 1 << 20} {
		for _, id := range []string{"", "writer", "four"} {
			found = append(found, check{fmt.Sprintf("first write of %d by %q", size, id), firstWrite(id, size)})
		}
	}
	for _, auto := range []bool{false, true} {
		for _, async := range []bool{false, true} {
			name := fmt.Sprintf("subscribe, auto commit %t, async %t", auto, async)
			found = append(found, check{name, subscribe(auto, async)})
		}
		found = append(found, check{fmt.Sprintf("fetch, auto commit %t", auto), fetchSome(auto)})
	}
	return found
}

func firstWrite(id string, size int) func(*client.Conn) error {
	return func(connection *client.Conn) error {
		writer, err := connection.ConnectWriter(id)
		if err != nil {
			return err
		}
		for _, message := range [][]byte{bytes.Repeat([]byte{'s'}, size), []byte("small"), nil} {
			if err := writer.Write("writes", message); err != nil {
				return err
			}
		}
		return errors.Join(writer.CheckParseStateAfterOpForTests(), writer.Close())
	}
}

func transaction(connection *client.Conn) error {
	writer, err := connection.ConnectWriter("tx")
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := writer.BeginTx(); err != nil {
		return err
	}
	for _, message := range []string{"one", "two", "three"} {
		if err := writer.Write("committed", []byte(message)); err != nil {
			return err
		}
	}
	if err := writer.CommitTx(); err != nil {
		return err
	}
	return expect(connection, "committed", "one", "two", "three")
}

func rolledBack(connection *client.Conn) error {
	writer, err := connection.ConnectWriter("tx")
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := errors.Join(writer.BeginTx(), writer.Write("rolled", []byte("never")), writer.RollbackTx()); err != nil {
		return err
	}
	if err := writer.Write("rolled", []byte("after")); err != nil {
		return err
	}
	return expect(connection, "rolled", "after")
}

func invalidStates(connection *client.Conn) error {
	writer, err := connection.ConnectWriter("tx")
	if err != nil {
		return err
	}
	defer writer.Close()
	if writer.CommitTx() == nil || writer.RollbackTx() == nil {
		return errors.New("ended what was not begun")
	}
	if err := writer.BeginTx(); err != nil {
		return err
	}
	if writer.BeginTx() == nil {
		return errors.New("began twice")
	}
	return writer.RollbackTx()
}

func refusedWrite(connection *client.Conn) error {
	writer, err := connection.ConnectWriter("")
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := writer.Write("", []byte("nowhere")); err == nil {
		return errors.New("wrote to no topic")
	}
	return writer.Write("somewhere", []byte("here"))
}

func fetchInVain(connection *client.Conn) error {
	consumer, err := connection.ConnectConsumer(client.ReaderConfig{Topic: "empty"})
	if err != nil {
		return err
	}
	defer consumer.Close()
	for range 2 {
		if _, err := consumer.Fetch(context.Background(), 1); err == nil || errors.Is(err, client.ErrTimeout) {
			return fmt.Errorf("nothing: %w", err)
		}
	}
	return nil
}

func fetchAndSettle(connection *client.Conn) error {
	if err := put(connection, "settled", "one", "two"); err != nil {
		return err
	}
	consumer, err := connection.ConnectConsumer(client.ReaderConfig{Topic: "settled"})
	if err != nil {
		return err
	}
	defer consumer.Close()
	first, err := take(consumer, 2)
	if err != nil {
		return err
	}
	if err := errors.Join(first[0].Ack(), first[1].Nack()); err != nil {
		return err
	}
	again, err := take(consumer, 1)
	if err != nil {
		return err
	}
	if again[0].String() != first[1].String() {
		return fmt.Errorf("%q came again", again[0])
	}
	return again[0].Ack()
}

func settleTwice(connection *client.Conn) error {
	if err := put(connection, "twice", "one"); err != nil {
		return err
	}
	consumer, err := connection.ConnectConsumer(client.ReaderConfig{Topic: "twice"})
	if err != nil {
		return err
	}
	defer consumer.Close()
	found, err := take(consumer, 1)
	if err != nil {
		return err
	}
	if err := found[0].Ack(); err != nil {
		return err
	}
	if found[0].Ack() == nil {
		return errors.New("settled twice")
	}
	return nil
}

func emptyArrives(connection *client.Conn) error {
	if err := put(connection, "hollow", ""); err != nil {
		return err
	}
	return expect(connection, "hollow", "\x00")
}

// oneByte is a bug of the client's: a message of one byte ends what it takes for the reply to its FETCH.
func oneByte(connection *client.Conn) error {
	if err := put(connection, "narrow", "1", "two"); err != nil {
		return err
	}
	return expect(connection, "narrow", "1", "two")
}

func fetchSome(auto bool) func(*client.Conn) error {
	return func(connection *client.Conn) error {
		topic := fmt.Sprintf("fetch %t", auto)
		if err := put(connection, topic, "one", "two", "three"); err != nil {
			return err
		}
		consumer, err := connection.ConnectConsumer(client.ReaderConfig{Topic: topic, AutoCommit: auto})
		if err != nil {
			return err
		}
		found, err := take(consumer, 3)
		if err != nil {
			return err
		}
		for _, each := range found {
			if err := each.Ack(); err != nil {
				return err
			}
		}
		return consumer.Close()
	}
}

func subscribe(auto, async bool) func(*client.Conn) error {
	return func(connection *client.Conn) error {
		topic := fmt.Sprintf("push %t %t", auto, async)
		if err := put(connection, topic, "one", "two", "three"); err != nil {
			return err
		}
		var lock sync.Mutex
		var failed error
		heard := make(chan struct{}, 16)
		settings := client.SubscriberConfig{ReaderConfig: client.ReaderConfig{Topic: topic, AutoCommit: auto, Async: async}}
		subscriber, err := connection.ConnectSubscriber(settings, func(message client.Msg) {
			err := message.Ack()
			lock.Lock()
			failed = errors.Join(failed, err)
			lock.Unlock()
			heard <- struct{}{}
		})
		if err != nil {
			return err
		}
		if err := put(connection, topic, "four"); err != nil {
			return err
		}
		for number := range 4 {
			select {
			case <-heard:
			case <-time.After(patience):
				return fmt.Errorf("%d of 4 came", number)
			}
		}
		lock.Lock()
		defer lock.Unlock()
		return errors.Join(failed, subscriber.Close())
	}
}

// pinged stays for as long as a client that does not answer is kept.
func pinged(connection *client.Conn) error {
	writer, err := connection.ConnectWriter("patient")
	if err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	return errors.Join(writer.Write("patient", []byte("still here")), writer.Close())
}

func noTopic(connection *client.Conn) error {
	if _, err := connection.ConnectConsumer(client.ReaderConfig{Topic: "\xff"}); err == nil {
		return errors.New("a topic that is not UTF-8")
	}
	return nil
}

func put(connection *client.Conn, topic string, messages ...string) error {
	writer, err := connection.ConnectWriter("")
	if err != nil {
		return err
	}
	for _, each := range messages {
		if err := writer.Write(topic, []byte(each)); err != nil {
			return err
		}
	}
	return writer.Close()
}

// take fetches until there are so many, for one that was given back is due only after a while.
func take(consumer *client.Consumer, count int) ([]client.Msg, error) {
	var found []client.Msg
	until := time.Now().Add(patience)
	for len(found) < count && time.Now().Before(until) {
		more, err := consumer.Fetch(context.Background(), uint32(count-len(found)))
		if err != nil && err.Error() != "no messages" {
			return nil, err
		}
		found = append(found, more...)
	}
	if len(found) < count {
		return nil, fmt.Errorf("%d of %d fetched", len(found), count)
	}
	return found, nil
}

func expect(connection *client.Conn, topic string, messages ...string) error {
	consumer, err := connection.ConnectConsumer(client.ReaderConfig{Topic: topic, AutoCommit: true})
	if err != nil {
		return err
	}
	defer consumer.Close()
	found, err := take(consumer, len(messages))
	if err != nil {
		return err
	}
	for number, message := range messages {
		if found[number].String() != message {
			return fmt.Errorf("%q instead of %q", found[number].String(), message)
		}
	}
	return nil
}
