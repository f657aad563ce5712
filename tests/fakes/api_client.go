// Raises a listener's limit of connections by one, as clients in other languages do it: reads it, and writes it with its etag.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "framegate/control/v1"
)

func main() {
	if err := raise(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok {
				fmt.Println(info.Reason)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func raise(address, listener, reason string) error {
	channel, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	limits := api.NewLimitServiceClient(channel)
	got, err := limits.GetLimit(ctx, &api.GetLimitRequest{Listener: listener})
	if err != nil {
		return err
	}
	limit := &api.Limit{Listener: listener, MaxConnectionCount: proto.Int64(got.Limit.GetMaxConnectionCount() + 1), Etag: got.Limit.Etag}
	set, err := limits.UpdateLimit(ctx, &api.UpdateLimitRequest{Limit: limit, Reason: reason})
	if err != nil {
		return err
	}
	fmt.Println(set.Limit.GetMaxConnectionCount())
	return nil
}
