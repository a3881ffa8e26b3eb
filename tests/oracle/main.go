// Command oracle answers questions about upstream's own Go code, so that tests can compare this
// project with the real thing instead of with a memory of it. It reads one JSON object a line from
// standard input and writes one JSON object a line to standard output, in the same order, flushing
// whenever no further input is waiting. The subcommand names what is asked:
//
//	oracle cel          compile, estimate and run CEL expressions (cel-go with Kubernetes' environments)
//	oracle allocate     run the structured allocator of kube-scheduler on one node at a time
//	oracle conformance  read a file of the CEL specification's simple tests and run cel-go on it
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// handler answers one line. A panic inside it is caught by serve and reported in the answer.
type handler func(line []byte) any

// failure is the answer to a line that could not be answered at all.
type failure struct {
	ID    json.RawMessage `json:"id,omitempty"`
	Fatal string          `json:"fatal"`
	Stack string          `json:"stack,omitempty"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: oracle cel|allocate|conformance")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "cel":
		err = serve(os.Stdin, os.Stdout, newCELOracle().answer)
	case "allocate":
		err = serve(os.Stdin, os.Stdout, newAllocateOracle().answer)
	case "conformance":
		err = serve(os.Stdin, os.Stdout, newConformanceOracle().answer)
	default:
		err = fmt.Errorf("unknown subcommand %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer, answer handler) error {
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriterSize(out, 1<<20)
	encoder := json.NewEncoder(writer)
	encoder.SetEscapeHTML(false)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(guarded(line, answer)); err != nil {
				return err
			}
			if reader.Buffered() == 0 {
				if err := writer.Flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return writer.Flush()
		}
		if err != nil {
			return err
		}
	}
}

func guarded(line []byte, answer handler) (result any) {
	defer func() {
		if r := recover(); r != nil {
			var head struct {
				ID json.RawMessage `json:"id"`
			}
			_ = json.Unmarshal(line, &head)
			result = failure{ID: head.ID, Fatal: fmt.Sprint(r), Stack: string(debug.Stack())}
		}
	}()
	return answer(line)
}
