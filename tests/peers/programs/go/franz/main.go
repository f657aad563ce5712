// franz-go as a program: `franz everything SETTINGS TOPIC COUNT`; what it does and prints is described in tests/peers/clients.py.
package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"framegate/peers/entry"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var check = entry.Check

func main() {
	e, topic, count := entry.Read()
	ctx, cancel := context.WithTimeout(context.Background(), 2*entry.GiveUp)
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(e.Address())}
	if e.TLS {
		options = append(options, kgo.DialTLSConfig(e.Config()))
	}
	switch e.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: e.User, Pass: e.Password}.AsMechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: e.User, Pass: e.Password}.AsSha512Mechanism()))
	}
	client := func(more ...kgo.Opt) *kgo.Client {
		made, err := kgo.NewClient(append(append([]kgo.Opt{}, options...), more...)...)
		check(err)
		return made
	}

	producer := client(kgo.DefaultProduceTopic(topic)) // idempotent and acks=all by default
	admin := kadm.NewClient(producer)
	_, err := admin.CreateTopic(ctx, 3, 3, nil, topic)
	check(err)
	metadata, err := admin.BrokerMetadata(ctx)
	check(err)
	for _, broker := range metadata.Brokers {
		fmt.Printf("broker %s:%d\n", broker.Host, broker.Port)
	}
	value := "3600000"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
	check(err)
	check(altered[0].Err)

	for first := 0; first < count; first += entry.Part {
		check(producer.ProduceSync(ctx, records(first, min(first+entry.Part, count))...).FirstErr())
		e.Pause()
	}
	within := client(kgo.DefaultProduceTopic(topic), kgo.TransactionalID(topic))
	check(within.BeginTransaction())
	check(within.ProduceSync(ctx, records(count, 2*count)...).FirstErr())
	check(within.EndTransaction(ctx, kgo.TryCommit))
	check(within.BeginTransaction())
	check(within.ProduceSync(ctx, &kgo.Record{Value: []byte("aborted")}).FirstErr())
	check(within.EndTransaction(ctx, kgo.TryAbort))
	within.Close()

	consumer := client(kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for got := 0; ; {
		wait := entry.More
		if got < 2*count {
			wait = entry.GiveUp
		}
		poll, done := context.WithTimeout(ctx, wait)
		fetches := consumer.PollFetches(poll)
		done()
		if fetches.NumRecords() == 0 {
			break
		}
		fetches.EachRecord(func(record *kgo.Record) { fmt.Println("value", string(record.Value)) })
		got += fetches.NumRecords()
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	consumer.LeaveGroup()
	consumer.Close()
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err)
	for _, config := range described[0].Configs {
		if config.Key == "retention.ms" {
			fmt.Println("retention", *config.Value)
		}
	}
	_, err = admin.DeleteTopic(ctx, topic)
	check(err)
	fmt.Println("deleted", topic)
}

func records(first, end int) []*kgo.Record {
	var made []*kgo.Record
	for number := first; number < end; number++ {
		made = append(made, &kgo.Record{Value: []byte(strconv.Itoa(number)), Timestamp: time.Now()})
	}
	return made
}
