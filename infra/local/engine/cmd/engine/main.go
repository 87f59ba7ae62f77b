// Command engine is the embedded ClickHouse server as a program of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"oncehouse/infra/local/engine"
)

func main() {
	var opts engine.Options
	flag.StringVar(&opts.Data, "data", "", "directory that holds the data")
	flag.StringVar(&opts.Addr, "addr", "127.0.0.1:0", "address to listen on")
	flag.StringVar(&opts.Library, "library", "", "path of libchdb")
	flag.StringVar(&opts.Config, "config", "", "ClickHouse configuration file")
	flag.StringVar(&opts.User, "user", "default", "user name, asked for with a password")
	flag.StringVar(&opts.Password, "password", "", "password; empty lets everybody in")
	flag.Parse()
	if err := engine.Serve(context.Background(), opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
