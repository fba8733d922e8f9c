package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	mdns "github.com/miekg/dns"
)

// CapturePort is the port that queries of this host's programs can be redirected to: the server listens
// there at 127.0.0.1 and at ::1, where the kernel redirects those to nameservers of each family.
func (s *Server) CapturePort() (uint16, error) {
	ports := map[netip.Addr][]uint16{}
	for _, a := range s.c.Addresses {
		ports[a.Addr()] = append(ports[a.Addr()], a.Port())
	}
	for _, p := range ports[netip.AddrFrom4([4]byte{127, 0, 0, 1})] {
		for _, q := range ports[netip.IPv6Loopback()] {
			if p == q && p != 0 {
				return p, nil
			}
		}
	}
	return 0, errors.New("DNS queries cannot be captured: the agent has to answer at 127.0.0.1 and at ::1, at the same port")
}

// Answers returns nil if the server answers by UDP and TCP at each of its addresses. It needs nothing of
// others, and its queries are not counted.
func (s *Server) Answers(ctx context.Context) error {
	const limit = 500 * time.Millisecond
	at := s.own()
	if len(at) == 0 {
		return errors.New("DNS is not served")
	}
	// Queries of this host may be captured from about now on: nameservers that send them back are found
	// at once.
	const first = 3
	if s.asked.Add(1) <= first {
		s.forward.probeSoon()
	}
	for _, a := range at {
		for _, udp := range []bool{true, false} {
			m := new(mdns.Msg)
			m.SetQuestion(s.self, mdns.TypeHINFO)
			if _, err := exchangeWith(ctx, a, m, udp, []time.Duration{limit}, func(error) {}); err != nil {
				return fmt.Errorf("asking the agent's own DNS: %w", err)
			}
		}
	}
	return nil
}

// isSelf reports whether a query is one of Answers.
func (s *Server) isSelf(q mdns.Question) bool {
	return q.Qtype == mdns.TypeHINFO && strings.EqualFold(q.Name, s.self)
}
