// Command test is the one program of the test image: pods of the end-to-end tests run it, and it is the pause
// container of their sandboxes. Static and without dependencies, so that the image is a single file.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: test pause            wait for SIGTERM, reaping children
       test sleep SECONDS    the same for at most SECONDS
       test env [NAME...]    print the environment, or these variables, sorted, as NAME=value
       test dial HOST:PORT   open a TCP connection within 5 seconds and say so
       test exit CODE        end with CODE`

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 0 {
		arguments = []string{"pause"}
	}
	switch command := arguments[0]; {
	case command == "pause" && len(arguments) == 1:
		wait(nil)
	case command == "sleep" && len(arguments) == 2:
		seconds, err := strconv.ParseFloat(arguments[1], 64)
		if err != nil {
			fail(err.Error())
		}
		wait(time.After(time.Duration(seconds * float64(time.Second))))
	case command == "env":
		printEnvironment(arguments[1:])
	case command == "dial" && len(arguments) == 2:
		connection, err := net.DialTimeout("tcp", arguments[1], 5*time.Second)
		if err != nil {
			fail(err.Error())
		}
		fmt.Println("connected to", connection.RemoteAddr())
	case command == "exit" && len(arguments) == 2:
		code, err := strconv.Atoi(arguments[1])
		if err != nil {
			fail(err.Error())
		}
		os.Exit(code)
	default:
		fail(usage)
	}
}

// wait returns on SIGTERM or SIGINT, or when over fires. As process 1 of a sandbox it inherits orphans and reaps them.
func wait(over <-chan time.Time) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for {
		select {
		case <-over:
			return
		case received := <-signals:
			if received != syscall.SIGCHLD {
				return
			}
			for {
				pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
				if pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

// printEnvironment prints NAME=value lines; a wanted variable that is not set is left out.
func printEnvironment(wanted []string) {
	lines := os.Environ()
	sort.Strings(lines)
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "=")
		if len(wanted) == 0 || contains(wanted, name) {
			fmt.Println(line)
		}
	}
}

func contains(names []string, name string) bool {
	for _, candidate := range names {
		if candidate == name {
			return true
		}
	}
	return false
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}
