package logpipe_test

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/logpipe"
)

// TestReaderHangs: whoever logs goes on while nobody reads the pipe; the lines that the reader gets
// afterwards are whole and in order, and the number of the others is among them.
func TestReaderHangs(t *testing.T) {
	t.Parallel()
	r, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := logpipe.New(to, func(lost int) []byte { return fmt.Appendf(nil, "lost %d\n", lost) })
	const lines, writers = 20000, 4 // a pipe has 64 KiB
	line := func(writer, n int) string { return fmt.Sprintf("line %d %d\n", writer, n) }
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for n := range lines {
				if size, err := w.Write([]byte(line(i, n))); err != nil || size != len(line(i, n)) {
					t.Errorf("%d, %v", size, err)
				}
			}
		})
	}
	all.Wait() // for ever, if it waits for the reader
	got := make(chan []string)
	go func() {
		var out []string
		for s := bufio.NewScanner(r); s.Scan(); {
			out = append(out, s.Text())
		}
		got <- out
	}()
	<-w.Waiting()
	_, _ = w.Write([]byte("last\n"))
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	out := <-got
	if len(out) < 3 || out[len(out)-1] != "last" {
		t.Fatalf("%d lines, the end is %q", len(out), out[max(len(out)-3, 0):])
	}
	count, lost, next := 0, 0, map[int]int{}
	for _, text := range out[:len(out)-1] {
		var writer, n int
		if _, err := fmt.Sscanf(text, "lost %d", &n); err == nil {
			lost += n
			continue
		}
		if _, err := fmt.Sscanf(text, "line %d %d", &writer, &n); err != nil || n < next[writer] {
			t.Fatalf("%q after %d: %v", text, next[writer], err)
		}
		next[writer] = n + 1
		count++
	}
	if lost == 0 || count+lost != lines*writers {
		t.Errorf("%d lines and %d lost of %d", count, lost, lines*writers)
	}
}
