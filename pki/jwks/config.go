package jwks

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/pki/durable"
)

// What applies where nothing is configured. All but MaxSources are Istio's.
const (
	// DefaultRefresh is how often keys are fetched (PILOT_JWT_PUB_KEY_REFRESH_INTERVAL).
	DefaultRefresh = 20 * time.Minute
	// DefaultMaxAge is how long keys are in force that were not confirmed
	// (JwtPubKeyEvictionDuration in pilot/pkg/model/jwks_resolver.go).
	DefaultMaxAge = 7 * 24 * time.Hour
	// DefaultTimeout is the time for one key set (pilot/pkg/security/authn).
	DefaultTimeout = 5 * time.Second
	// DefaultMaxSources bounds the key sets.
	DefaultMaxSources = 1000
)

const (
	// MaxTimeout bounds Source.Timeout: who waits longer has a place that others need.
	MaxTimeout = 30 * time.Second
	// FileInterval is how often files are looked at.
	FileInterval = 5 * time.Second
	// The first and the last pause after a failure. Istio tries seven times, a second
	// apart, then after a minute, then after twice as long each time, up to an hour.
	firstRetryAfter = 5 * time.Second
	lastRetryAfter  = 5 * time.Minute
	// maxFetches bounds the requests at a time: in all, for one owner, to one host.
	maxFetches         = 32
	maxFetchesOfOwner  = 8
	maxFetchesFromHost = 2
	// minRefresh keeps a typing error from becoming an attack on issuers.
	minRefresh = 10 * time.Second
)

// Config is what a Store needs.
type Config struct {
	// Logger and CacheDir are required. CacheDir is made if it is not there, and nobody else
	// may write to it.
	Logger   *slog.Logger
	CacheDir string
	// FS writes the cache; nil means the operating system's.
	FS durable.FS
	// Dir has the key sets as files ([FileName]); then nothing is fetched over the network.
	// Empty means that all are fetched.
	Dir string
	// CAFile has authorities of issuers' servers, in PEM, besides those of the system. It is
	// read again when it changes. Empty means none.
	CAFile string
	// Proxy is an http, https or socks5 URL through which everything is fetched. It looks
	// names up, so that only it can refuse the addresses to which they lead. Empty means none:
	// the environment is not asked.
	Proxy string
	// OwnPorts are the ports of this server, from which nothing is fetched at any address of
	// this machine.
	OwnPorts []uint16
	// Refresh is how often a key set is fetched, MaxAge how long one is in force that could not
	// be; 0 means DefaultRefresh and DefaultMaxAge.
	Refresh, MaxAge time.Duration
	// MaxSources bounds the key sets; 0 means DefaultMaxSources. If more are wanted, each owner
	// has an equal share.
	MaxSources int
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil || c.CacheDir == "" {
		errs = append(errs, errors.New("key sets: Logger and CacheDir are needed"))
	}
	if c.FS == nil {
		c.FS = durable.OS{}
	}
	if c.Refresh == 0 {
		c.Refresh = DefaultRefresh
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxSources == 0 {
		c.MaxSources = DefaultMaxSources
	}
	if c.Refresh < minRefresh {
		errs = append(errs, fmt.Errorf("key sets: a refresh every %s is more often than every %s", c.Refresh, minRefresh))
	}
	if c.MaxAge < c.Refresh {
		errs = append(errs, fmt.Errorf("key sets: an age of %s at most is less than the %s between two refreshes", c.MaxAge, c.Refresh))
	}
	if c.MaxSources < 0 {
		errs = append(errs, errors.New("key sets: the bound of sources is negative"))
	}
	if c.Dir != "" && (c.Proxy != "" || c.CAFile != "") {
		errs = append(errs, errors.New("key sets: they are read from a directory, so that a proxy or authorities are of no use"))
	}
	return c, errors.Join(errs...)
}

func (c Config) fetcher() (fetcher, error) {
	if c.Dir != "" {
		return &directory{c.Dir}, checkDir(c.Dir)
	}
	w := &web{policy: policy{c.OwnPorts, net.InterfaceAddrs}, roots: &roots{path: c.CAFile}, refresh: c.Refresh}
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5" {
			return nil, errors.New("key sets: the proxy is not a URL such as http://proxy.example.com:3128")
		}
		w.proxy = u
	}
	_, err := w.roots.current()
	return w, err
}
