package dns

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// serveEnv has this binary be the server of BenchmarkCost: its value is the directory of its
// resolv.conf.
const serveEnv = "FAIRLEAD_DNS_SERVE"

// serveForCost is the server's process: it says how much memory the table took and where it listens,
// and ends with its standard input.
func serveForCost(dir string) error {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	table := &Table{}
	table.Update(manyNames(costNames), nil, true)
	used := heap() - before
	conf := filepath.Join(dir, "resolv.conf")
	s, err := New(Config{Logger: quiet(), Table: table, Addresses: loopback(), ResolvConf: conf, Stub: conf + ".stub"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := s.Listen(ctx); err != nil {
		return err
	}
	nameserver, err := netip.ParseAddrPort(os.Getenv(serveEnv + "_UPSTREAM"))
	if err != nil {
		return err
	}
	s.forward.upstreams.Store(&[]*upstream{{address: nameserver}})
	fmt.Println(used, (*s.listening.Load())[0]) //nolint:forbidigo // to the parent
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	cancel()
	return <-ended
}

const (
	costNames   = 10_000
	costRounds  = 9
	costTime    = 2 * time.Second
	costSockets = 8
	costWindow  = 16
	// Budgets.
	leastAnswers = 40_000
	mostMemory   = 12 << 20
)

// BenchmarkCost measures what answers cost a process of its own, by real sockets. With BENCH_DNS it
// writes a page there. See `make bench-dns`.
func BenchmarkCost(b *testing.B) {
	page := os.Getenv("BENCH_DNS")
	if page == "" {
		b.Skip("BENCH_DNS names the page to write")
	}
	up := newUpstream(b, world)
	dir := b.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), serveEnv+"="+dir, serveEnv+"_UPSTREAM="+up.at, "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	var memory uint64
	var at string
	if _, err := fmt.Sscan(line, &memory, &at); err != nil {
		b.Fatal(err)
	}
	rows := []string{}
	met := func(ok bool) string {
		if !ok {
			b.Error("a budget is not met")
			return "**not met**"
		}
		return "met"
	}
	for _, c := range []struct {
		what  string
		typ   uint16
		name  func(i int) string
		least float64
	}{
		{"A, a name of the mesh", mdns.TypeA, func(i int) string { return fmt.Sprintf("s%04d.shop.mesh.internal.", i%costNames) }, leastAnswers},
		{"AAAA, a name of the mesh", mdns.TypeAAAA, func(i int) string { return fmt.Sprintf("s%04d.shop.mesh.internal.", i%costNames) }, leastAnswers},
		{"SRV, all ports of a name", mdns.TypeSRV, func(i int) string { return fmt.Sprintf("s%04d.shop.mesh.internal.", i%costNames) }, 0},
		{"forwarded, another name each time", mdns.TypeA, func(i int) string { return fmt.Sprintf("w%d.example.", i) }, 0},
	} {
		var perCore, perSecond []float64
		for range costRounds {
			cpu, began := cpuOf(b, cmd.Process.Pid), time.Now()
			n := flood(b, at, c.typ, c.name)
			took := time.Since(began).Seconds()
			used := cpuOf(b, cmd.Process.Pid) - cpu
			perCore, perSecond = append(perCore, float64(n)/used.Seconds()), append(perSecond, float64(n)/took)
		}
		slices.Sort(perCore)
		slices.Sort(perSecond)
		median := perCore[len(perCore)/2]
		budget, verdict := "–", ""
		if c.least > 0 {
			budget, verdict = fmt.Sprintf("≥ %.0f", c.least), met(median >= c.least)
		}
		rows = append(rows, fmt.Sprintf("| %s | %.0f | %.0f to %.0f | %.0f | %s | %s |", c.what, median, perCore[0], perCore[len(perCore)-1], perSecond[len(perSecond)/2], budget, verdict))
	}
	text := fmt.Sprintf(`# What DNS on a host costs

Written by `+"`make bench-dns`"+`.

%s, %s/%s, %d CPUs, %s. Load of the machine at the end %s.

The server is a process of its own with one Go processor and %d names, two addresses and three ports each. %d sockets of another process ask it by UDP on loopback, each with %d queries on their way, %d rounds of %s. CPU is that of the server's process, the kernel's
work for its sockets included. "A second" is what came back in the time, with clients on the same machine.

| Answer | a second and core of CPU, median | spread | a second | Budget | |
|---|---|---|---|---|---|
%s

Memory of the table with %d names: %.1f MB of heap, budget %d MB: %s. TestMemory measures the same in each full run of the tests.
`, time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), load(),
		costNames, costSockets, costWindow, costRounds, costTime, strings.Join(rows, "\n"), costNames, float64(memory)/(1<<20), mostMemory>>20, met(memory <= mostMemory))
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// flood asks for a while, and returns how many answers came.
func flood(b *testing.B, at string, typ uint16, name func(i int) string) int64 {
	b.Helper()
	var next, got atomic.Int64
	var all sync.WaitGroup
	until := time.Now().Add(costTime)
	for range costSockets {
		all.Go(func() {
			conn, err := net.Dial("udp", at)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			ask := func() {
				m := new(mdns.Msg)
				m.SetQuestion(name(int(next.Add(1))), typ)
				packet, err := m.Pack()
				if err == nil {
					_, err = conn.Write(packet)
				}
				if err != nil {
					b.Error(err)
				}
			}
			for range costWindow {
				ask()
			}
			buf := make([]byte, mdns.MaxMsgSize)
			const lost = time.Second // after it, a packet is not awaited any more
			for time.Now().Before(until) {
				_ = conn.SetReadDeadline(time.Now().Add(lost))
				n, err := conn.Read(buf)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					for range costWindow { // lost
						ask()
					}
					continue
				}
				const rcode, answers = 3, 6
				if err != nil || n < 12 || buf[rcode]&0xf != 0 || binary.BigEndian.Uint16(buf[answers:]) == 0 {
					b.Errorf("answer %x, %v", buf[:n], err)
					return
				}
				got.Add(1)
				ask()
			}
		})
	}
	all.Wait()
	return got.Load()
}

// cpuOf is the CPU time of a process until now.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	words := strings.Fields(rest)
	const user, system, ticks = 11, 12, 100
	sum := 0
	for _, w := range []string{words[user], words[system]} {
		n, err := strconv.Atoi(w)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
