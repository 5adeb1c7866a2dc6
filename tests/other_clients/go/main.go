// Two addresses, and messages with IDs: what docs/guides/when-a-region-dies.md shows, as it stands there.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

var us, eu = os.Args[1], os.Args[2]

func open(url string) *redis.Client {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	options.MaxRetries, options.DialTimeout, options.ReadTimeout = -1, time.Second, time.Second
	return redis.NewClient(options)
}

func main() {
	for number := 1; number <= 100; number++ {
		id := fmt.Sprintf("order-%d", number)
		_, err := send(context.Background(), "XADD", "orders", "IDMP", "checkout-1", id, "*", "n", number)
		if err != nil {
			panic(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("fine")
}
