package scenario

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pki/svid"
)

// proxiesPerHost is how many proxies of a fleet share the identity of a host,
// over TLS: a token has room for so many workloads.
const proxiesPerHost = svid.MaxPairs

// tokens asks the control plane for a join token for each host of a fleet.
func (s *Server) tokens(ctx context.Context, cfg FleetConfig) ([]string, error) {
	var out []string
	end := cfg.First + cfg.Size
	for first := cfg.First; first < end; first += proxiesPerHost {
		pairs := []string{}
		seen := map[string]bool{}
		for i := first; i < min(first+proxiesPerHost, end); i++ {
			p := cfg.Mesh.Proxy(i)
			if pair := p.Namespace + "/" + p.Account; !seen[pair] {
				seen[pair] = true
				pairs = append(pairs, pair)
			}
		}
		token, err := s.token(ctx, "host-of-"+strconv.Itoa(first), pairs)
		if err != nil {
			return nil, err
		}
		out = append(out, token)
	}
	return out, nil
}

// token is what `fairlead token create` asks for.
func (s *Server) token(ctx context.Context, host string, workloads []string) (string, error) {
	in, err := json.Marshal(map[string]any{"host": host, "workloads": workloads})
	if err != nil {
		return "", fmt.Errorf("asking for a token: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin/v1/tokens", bytes.NewReader(in))
	if err != nil {
		return "", fmt.Errorf("asking for a token: %w", err)
	}
	res, err := s.admin.Do(req)
	if err != nil {
		return "", fmt.Errorf("asking for a token: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("asking for a token: %s: %.200s: %w", res.Status, body, err)
	}
	var out struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return "", fmt.Errorf("asking for a token: %w", err)
	}
	return out.Token, nil
}

// dialer gives the function that connects the proxies of a fleet.
func (c FleetConfig) dialer(ctx context.Context) (func(ctx context.Context, i int) (net.Conn, error), error) {
	plain := func(ctx context.Context, _ int) (net.Conn, error) {
		d := net.Dialer{Control: c.control}
		return d.DialContext(ctx, "tcp", c.Address)
	}
	if !c.TLS {
		return plain, nil
	}
	configs, err := c.identities(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, i int) (net.Conn, error) {
		nc, err := plain(ctx, i)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(nc, configs[i/proxiesPerHost%len(configs)])
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, fmt.Errorf("shaking hands: %w", err)
		}
		return conn, nil
	}, nil
}

// control makes the buffer of a connection small before there is one: later the
// kernel has promised more.
func (c FleetConfig) control(_, _ string, raw syscall.RawConn) (err error) {
	if c.ReadBuffer == 0 {
		return nil
	}
	set := func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, c.ReadBuffer)
	}
	return errors.Join(raw.Control(set), err)
}

// identities are the settings of each host; without tokens a host is anybody.
func (c FleetConfig) identities(ctx context.Context) ([]*tls.Config, error) {
	if len(c.Tokens) == 0 {
		cert, err := SelfSigned()
		if err != nil {
			return nil, err
		}
		return []*tls.Config{{
			Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
			InsecureSkipVerify: true, // the limit's server is whoever listens there
		}}, nil
	}
	out := make([]*tls.Config, len(c.Tokens))
	var g errgroup.Group
	g.SetLimit(4)
	for i, text := range c.Tokens {
		g.Go(func() error {
			token, err := svid.ParseJoinToken(text)
			if err != nil {
				return err
			}
			client, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
			if err != nil {
				return err
			}
			key, err := svid.NewKey()
			if err != nil {
				return err
			}
			id, err := client.Join(ctx, token, key)
			if err != nil {
				return err
			}
			out[i] = svid.ClientTLS(func() *svid.Identity { return id })
			out[i].NextProtos = []string{"h2"}
			return nil
		})
	}
	return out, g.Wait()
}

// SelfSigned is a certificate of nobody, for servers and fleets that only have
// to do the work of TLS.
func SelfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "limit"}, DNSNames: []string{"limit"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
