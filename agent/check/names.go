package check

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How often, and for how long each time, a nameserver is asked.
const (
	nameserverTries = 2
	nameserverTime  = time.Second
)

// names checks that the host resolves names at all: whether anybody answers at the addresses of
// resolv.conf, whatever the answer is.
func (r *run) names(ctx context.Context) {
	file := cmp.Or(r.ResolvConf, "/etc/resolv.conf")
	b, err := os.ReadFile(file)
	if err != nil {
		r.add("dns", Warning, fmt.Sprintf("%v", err), "write it, unless no program of this host needs names from DNS")
		return
	}
	var servers []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && len(servers) < 8 {
			servers = append(servers, f[1])
		}
	}
	if len(servers) == 0 {
		r.add("dns", Warning, file+" names no server", "name one, unless no program of this host needs names from DNS")
		return
	}
	errs := make([]error, len(servers))
	var wait sync.WaitGroup
	for i, s := range servers {
		wait.Go(func() { errs[i] = answers(ctx, net.JoinHostPort(s, strconv.Itoa(int(cmp.Or(r.DNSPort, 53))))) })
	}
	wait.Wait()
	var up []string
	for i, s := range servers {
		if errs[i] == nil {
			up = append(up, s)
			continue
		}
		r.add("dns", Warning, fmt.Sprintf("the nameserver %s of %s does not answer: %v", s, file, errs[i]), "start it, or name another one, unless no program of this host needs names from DNS")
	}
	if len(up) > 0 {
		r.add("dns", OK, strings.Join(up, ", ")+" of "+file+" answers", "")
	}
}

// answers asks a nameserver for the servers of the root, and reports why there is no answer.
func answers(ctx context.Context, server string) error {
	conn, err := (&net.Dialer{Timeout: nameserverTime}).DialContext(ctx, "udp", server)
	if err != nil {
		return fmt.Errorf("asking it: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// An id, one question with recursion, the root, NS, IN.
	query := []byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}
	_, _ = rand.Read(query[:2]) // it never fails
	reply := make([]byte, 4096)
	for range nameserverTries {
		if err = conn.SetDeadline(time.Now().Add(nameserverTime)); err != nil {
			break
		}
		if _, err = conn.Write(query); err != nil {
			continue
		}
		var n int
		if n, err = conn.Read(reply); err != nil {
			continue
		}
		const header, response = 12, 0x80
		if n >= header && reply[0] == query[0] && reply[1] == query[1] && reply[2]&response != 0 {
			return nil
		}
		err = errors.New("what comes back is no answer")
	}
	return fmt.Errorf("asking it: %w", err)
}
