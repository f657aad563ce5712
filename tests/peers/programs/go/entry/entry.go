// Package entry reads where a client comes in, and as whom.
package entry

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"
)

// A client gives up after GiveUp; it waits More for records that should not come.
const (
	GiveUp = 20 * time.Second
	More   = 200 * time.Millisecond
)

// Part is the number of records between two pauses.
const Part = 100

// Entry has the settings of tests/peers/clients.py's Entry that programs in Go use.
type Entry struct {
	Host, CA, Certificate, Key, Mechanism, User, Password string
	Port                                                  int
	TLS                                                   bool
	PauseS                                                float64 `json:"pause_s"`
}

// Read gives the settings, the topic and the count of the command line `PROGRAM everything SETTINGS TOPIC COUNT`.
func Read() (Entry, string, int) {
	var found Entry
	text, err := os.ReadFile(os.Args[2])
	Check(err)
	Check(json.Unmarshal(text, &found))
	count, err := strconv.Atoi(os.Args[4])
	Check(err)
	return found, os.Args[3], count
}

// Address is where the client comes in.
func (e Entry) Address() string { return fmt.Sprintf("%s:%d", e.Host, e.Port) }

// Config is what the client needs for TLS.
func (e Entry) Config() *tls.Config {
	pem, err := os.ReadFile(e.CA)
	Check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if e.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(e.Certificate, e.Key)
		Check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

// Pause waits between two parts.
func (e Entry) Pause() { time.Sleep(time.Duration(e.PauseS * float64(time.Second))) }

// Check ends the program with an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
