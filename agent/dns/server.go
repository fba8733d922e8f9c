package dns

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

// Limits of what clients can make grow.
const (
	maxUDPQuery    = 4096 // bytes of a query by UDP
	maxConnections = 256  // TCP connections, at each address
	maxPerConn     = 1024 // queries of one connection
	idleTime       = 8 * time.Second
	readTime       = 2 * time.Second
)

// DefaultPort is Istio's.
const DefaultPort = 15053

// DefaultAddresses are where a Server listens.
func DefaultAddresses() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), DefaultPort), netip.AddrPortFrom(netip.IPv6Loopback(), DefaultPort),
	}
}

// Config is what a Server needs.
type Config struct {
	// Logger and Table must be non-nil.
	Logger *slog.Logger
	Table  *Table
	// Addresses are where it listens: loopback addresses only; nil means DefaultAddresses. An IPv6
	// address is left out on a host without IPv6.
	Addresses []netip.AddrPort
	// ResolvConf names the nameservers that are asked for all other names; empty means
	// /etc/resolv.conf.
	ResolvConf string
	// Stub is what is read instead of ResolvConf if that names the stub of systemd-resolved; empty
	// means /run/systemd/resolve/resolv.conf.
	Stub string
}

// Server answers the DNS queries of a host.
type Server struct {
	c       Config
	log     *slog.Logger
	forward *forwarder
	servers []*mdns.Server // set by Listen
	self    string         // the name that Answers asks for; constant
	asked   atomic.Int64   // calls of Answers

	queries, mesh, forwarded, refused, failed atomic.Uint64

	listening atomic.Pointer[[]string]
}

// New checks the configuration; it starts nothing.
func New(c Config) (*Server, error) {
	if c.Logger == nil || c.Table == nil {
		return nil, errors.New("configuring DNS: Logger and Table are needed")
	}
	if c.Addresses == nil {
		c.Addresses = DefaultAddresses()
	}
	for _, a := range c.Addresses {
		if !a.Addr().IsLoopback() { // other hosts must not ask, nor be hit by answers that they did not ask for
			return nil, fmt.Errorf("configuring DNS: %s is not a loopback address", a)
		}
	}
	if c.ResolvConf == "" {
		c.ResolvConf = "/etc/resolv.conf"
	}
	if c.Stub == "" {
		c.Stub = "/run/systemd/resolve/resolv.conf"
	}
	s := &Server{c: c, log: c.Logger.With("component", "agent/dns"), self: strings.ToLower(rand.Text() + "." + rand.Text() + ".")}
	s.forward = newForwarder(s)
	return s, nil
}

// Listen opens the sockets; [Server.Run] has to follow. So a port that is in use is known before
// anything else is begun.
func (s *Server) Listen(ctx context.Context) error {
	servers, err := s.listen(ctx)
	if err != nil {
		return err
	}
	s.servers = servers
	return nil
}

// Run serves until ctx ends. It listens, if [Server.Listen] was not called.
func (s *Server) Run(ctx context.Context) error {
	if s.servers == nil {
		if err := s.Listen(ctx); err != nil {
			return err
		}
	}
	servers := s.servers
	group, ctx := errgroup.WithContext(ctx)
	for _, srv := range servers {
		group.Go(func() error {
			if err := srv.ActivateAndServe(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serving DNS: %w", err)
			}
			return nil
		})
	}
	group.Go(func() error { return s.forward.run(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		s.forward.stop()
		for _, srv := range servers {
			if srv.Listener != nil {
				_ = srv.Listener.Close()
			} else {
				_ = srv.PacketConn.Close()
			}
		}
		for _, srv := range servers {
			_ = srv.Shutdown() // waits for queries that are answered now; an error means that it had not started
		}
		return nil
	})
	return group.Wait()
}

// listen opens all sockets: of an address by UDP and TCP, or none.
func (s *Server) listen(ctx context.Context) (servers []*mdns.Server, err error) {
	defer func() {
		if err != nil {
			for _, srv := range servers {
				if srv.Listener != nil {
					_ = srv.Listener.Close()
				} else {
					_ = srv.PacketConn.Close()
				}
			}
		}
	}()
	var at []string
	for _, a := range s.c.Addresses {
		udp, tcp, err := listenBoth(ctx, a)
		if err != nil && a.Addr().Is6() && len(servers) > 0 && noIPv6(err) {
			s.log.InfoContext(ctx, "DNS is not served by IPv6, which this host does not have", "address", a, "err", err)
			continue
		}
		if err != nil {
			return servers, fmt.Errorf("listening for DNS: %w", err)
		}
		for _, srv := range []*mdns.Server{{PacketConn: udp, UDPSize: maxUDPQuery}, {Listener: netutil.LimitListener(tcp, maxConnections)}} {
			servers = append(servers, s.server(srv)) //nolint:contextcheck // queries end with Run's
		}
		at = append(at, udp.LocalAddr().String())
	}
	s.listening.Store(&at)
	return servers, nil
}

// listenBoth opens an address for UDP and TCP.
func listenBoth(ctx context.Context, a netip.AddrPort) (net.PacketConn, net.Listener, error) {
	const tries = 20 // a free port of UDP may be in use by TCP
	var lc net.ListenConfig
	for i := 1; ; i++ {
		udp, err := lc.ListenPacket(ctx, "udp", a.String())
		if err != nil {
			return nil, nil, err
		}
		tcp, err := lc.Listen(ctx, "tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp, nil
		}
		_ = udp.Close()
		if a.Port() != 0 || i == tries {
			return nil, nil, err
		}
	}
}

func (s *Server) server(srv *mdns.Server) *mdns.Server {
	udp := srv.PacketConn != nil
	srv.Handler = mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) { s.serve(w, q, udp) })
	srv.MsgAcceptFunc = accept
	srv.ReadTimeout, srv.WriteTimeout, srv.MaxTCPQueries = readTime, readTime, maxPerConn
	srv.IdleTimeout = func() time.Duration { return idleTime }
	return srv
}

// accept decides by the header of a message.
func accept(h mdns.Header) mdns.MsgAcceptAction {
	const response, opcodes, maxExtra = 1 << 15, 0xf, 2
	switch {
	case h.Bits&response != 0:
		return mdns.MsgIgnore
	case int(h.Bits>>11)&opcodes != mdns.OpcodeQuery:
		return mdns.MsgRejectNotImplemented
	case h.Qdcount != 1 || h.Ancount > 0 || h.Nscount > 1 || h.Arcount > maxExtra:
		return mdns.MsgReject
	default:
		return mdns.MsgAccept
	}
}

// serve answers one query.
func (s *Server) serve(w mdns.ResponseWriter, q *mdns.Msg, udp bool) {
	if !s.isSelf(q.Question[0]) {
		s.queries.Add(1)
	}
	reply := s.reply(q, udp)
	if reply == nil {
		return
	}
	_ = w.WriteMsg(reply) // the client is gone; it asks again if it is not
}

// reply is the answer to a query, no larger than the client takes it.
func (s *Server) reply(q *mdns.Msg, udp bool) *mdns.Msg {
	size := mdns.MaxMsgSize - 1
	edns := q.IsEdns0()
	if udp {
		if size = mdns.MinMsgSize; edns != nil {
			size = max(size, int(edns.UDPSize()))
		}
	}
	reply := new(mdns.Msg)
	reply.SetReply(q)
	reply.RecursionAvailable = true
	question := q.Question[0]
	switch {
	case edns != nil && edns.Version() != 0:
		reply.Rcode = mdns.RcodeBadVers
		s.refused.Add(1)
	case question.Qclass != mdns.ClassINET || question.Qtype == mdns.TypeAXFR || question.Qtype == mdns.TypeIXFR:
		reply.Rcode = mdns.RcodeRefused
		s.refused.Add(1)
	case s.isSelf(question):
		reply.Rcode = mdns.RcodeNameError
	case s.c.Table.answer(reply, question):
		reply.Authoritative = true
		s.mesh.Add(1)
	case s.forward.isProbe(question):
		reply.Rcode = mdns.RcodeNameError // it is our own
	default:
		reply = s.forward.ask(q, reply, udp)
	}
	if edns != nil && reply.IsEdns0() == nil {
		reply.SetEdns0(maxUDPQuery, edns.Do())
	}
	reply.Truncate(size)
	return reply
}
