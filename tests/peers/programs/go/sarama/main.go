// sarama as a program: `sarama everything SETTINGS TOPIC COUNT`; what it does and prints is described in tests/peers/clients.py.
package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"framegate/peers/entry"

	"github.com/IBM/sarama"
)

var check = entry.Check

func main() {
	e, topic, count := entry.Read()
	addresses := []string{e.Address()}
	admin, err := sarama.NewClusterAdmin(addresses, config(e))
	check(err)
	check(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 3}, false))
	brokers, _, err := admin.DescribeCluster()
	check(err)
	for _, broker := range brokers {
		fmt.Println("broker", broker.Addr())
	}
	value := "3600000"
	change := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}}
	check(admin.IncrementalAlterConfig(sarama.TopicResource, topic, change, false))

	producer, err := sarama.NewSyncProducer(addresses, idempotent(e))
	check(err)
	for first := 0; first < count; first += entry.Part {
		check(producer.SendMessages(messages(topic, first, min(first+entry.Part, count))))
		e.Pause()
	}
	check(producer.Close())
	transactional := idempotent(e)
	transactional.Producer.Transaction.ID = topic
	within, err := sarama.NewSyncProducer(addresses, transactional)
	check(err)
	check(within.BeginTxn())
	check(within.SendMessages(messages(topic, count, 2*count)))
	check(within.CommitTxn())
	check(within.BeginTxn())
	_, _, err = within.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("aborted")})
	check(err)
	check(within.AbortTxn())
	check(within.Close())

	consuming := config(e)
	consuming.Consumer.Offsets.Initial = sarama.OffsetOldest
	consuming.Consumer.IsolationLevel = sarama.ReadCommitted
	group, err := sarama.NewConsumerGroup(addresses, topic, consuming)
	check(err)
	values := &values{make(chan string, 2*count)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- group.Consume(ctx, []string{topic}, values) }()
	values.print(2 * count)
	cancel()
	check(<-ended)
	check(group.Close())
	described, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	check(err)
	fmt.Println("retention", described[0].Value)
	check(admin.DeleteTopic(topic))
	fmt.Println("deleted", topic)
}

func config(e entry.Entry) *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Metadata.Retry.Max, made.Producer.Retry.Max, made.Producer.Transaction.Retry.Max, made.Admin.Retry.Max = 200, 200, 200, 200
	if e.TLS {
		made.Net.TLS.Enable, made.Net.TLS.Config = true, e.Config()
	}
	if e.Mechanism != "" {
		made.Net.SASL.Enable, made.Net.SASL.User, made.Net.SASL.Password = true, e.User, e.Password
		made.Net.SASL.Mechanism = sarama.SASLMechanism(e.Mechanism)
	}
	return made
}

func idempotent(e entry.Entry) *sarama.Config {
	made := config(e)
	made.Producer.Idempotent, made.Producer.RequiredAcks, made.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	made.Producer.Return.Successes = true
	return made
}

func messages(topic string, first, end int) []*sarama.ProducerMessage {
	var made []*sarama.ProducerMessage
	for number := first; number < end; number++ {
		made = append(made, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(strconv.Itoa(number))})
	}
	return made
}

// values hands on what the group's consumer gets.
type values struct{ found chan string }

func (v *values) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (v *values) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (v *values) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		v.found <- string(message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func (v *values) print(expected int) {
	for got := 0; ; got++ {
		wait := entry.More
		if got < expected {
			wait = entry.GiveUp
		}
		select {
		case value := <-v.found:
			fmt.Println("value", value)
		case <-time.After(wait):
			return
		}
	}
}
