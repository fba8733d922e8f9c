package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/loglevel"
	"github.com/fairlead/fairlead/internal/unixsocket"
)

// Limits of the port for health and metrics, which needs no authentication. Beyond
// maxConnections a new connection waits until another one ends. A connection without a request
// is closed after headerTime, one that does not read the answer after publicTime.
const (
	maxConnections = 256
	headerTime     = 5 * time.Second
	idleTime       = time.Minute
	publicTime     = 30 * time.Second
)

// Config says what a [Server] shows and where.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Address is where health, readiness and metrics are served in plaintext,
	// such as "127.0.0.1:15014"; empty means nowhere.
	Address string
	// Socket is the path of admin.sock; empty means none.
	Socket string
	// Metrics serves /metrics; nil means none.
	Metrics http.Handler
	// Registerer takes the metric of sockets that were made again; nil means none. Sockets
	// are those of the process beside admin.sock, by name; it may be nil.
	Registerer prometheus.Registerer
	Sockets    func() map[string]uint64
	// NotReady gives the reasons why /readyz says no; nil or no reasons means
	// ready.
	NotReady func() []string
	// Remarks are below "ready" in /readyz: what somebody should know who
	// asks whether all is well. Nil means none.
	Remarks func() []string
	// Levels are the log levels of the process, which clients of admin.sock may change; nil means
	// that nobody can.
	Levels *loglevel.Levels
	// Routes are served on admin.sock only. Keys are patterns of
	// [http.ServeMux].
	Routes map[string]http.Handler
	// Public are those of the Routes that are served at Address, too.
	Public map[string]http.Handler
}

// Server serves the administration of one process.
type Server struct {
	cfg     Config
	tcp     net.Listener // or nil
	unix    net.Listener // or nil
	address string
	// problem says why nobody can connect to admin.sock, or is empty. It is nil if there is none.
	problem func() string
	remade  func() uint64 // how often admin.sock was made again; nil if there is none
}

// New binds the listeners, so that a taken port stops the start of a process.
func New(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg}
	if cfg.Address != "" {
		l, err := Listen(ctx, cfg.Address)
		if err != nil {
			return nil, fmt.Errorf("listening for health and metrics (--http-address): %w", err)
		}
		s.tcp, s.address = l, l.Addr().String()
	}
	if cfg.Socket != "" {
		l, err := listenUnix(ctx, cfg.Socket, cfg.Logger)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.unix, s.problem, s.remade = guard(l, cfg.Logger), l.Problem, l.Remade
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(remadeSockets{s}); err != nil {
			return nil, errors.Join(fmt.Errorf("registering metrics: %w", err), s.Close())
		}
	}
	return s, nil
}

// Close gives the listeners back where Run is never called.
func (s *Server) Close() error {
	var errs []error
	for _, l := range []net.Listener{s.tcp, s.unix} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// Address is where health and metrics are served, with the real port; empty if
// nowhere.
func (s *Server) Address() string { return s.address }

func listenUnix(ctx context.Context, path string, log *slog.Logger) (*unixsocket.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("making the runtime directory: %w", err)
	}
	// The group may administer.
	return unixsocket.Listen(ctx, unixsocket.Config{Logger: log, Path: path, Mode: 0o660, UID: uint32(os.Geteuid())})
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if s.tcp != nil {
		s.serve(ctx, g, netutil.LimitListener(s.tcp, maxConnections), &http.Server{Handler: s.public(s.cfg.Public), ReadTimeout: publicTime, WriteTimeout: publicTime})
	}
	if s.unix != nil {
		s.serve(ctx, g, s.unix, &http.Server{Handler: s.private()}) //nolint:gosec // G112: serve sets the time of headers
	}
	return g.Wait()
}

func (s *Server) serve(ctx context.Context, g *errgroup.Group, l net.Listener, srv *http.Server) {
	srv.ReadHeaderTimeout, srv.IdleTimeout, srv.MaxHeaderBytes = headerTime, idleTime, 64<<10
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.ErrorLog = slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug)
	g.Go(func() error {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving %s: %w", l.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			_ = srv.Close()
		}
		return nil
	})
}

// public is what anyone may see: whether the process lives, whether it is
// ready, and its counters.
func (s *Server) public(more map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range more {
		mux.Handle(pattern, h)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.ready)
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	return mux
}

// private is for those who can open the socket.
func (s *Server) private() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s.public(nil))
	for pattern, h := range s.cfg.Routes {
		mux.Handle(pattern, h)
	}
	if s.cfg.Levels != nil {
		mux.Handle("GET "+LogLevelsPath, JSON(s.logLevels))
		mux.Handle("POST "+LogLevelsPath, JSON(s.setLogLevels))
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

// LogLevelsPath is where admin.sock shows the log levels of its process, as a list of
// [loglevel.Component], and takes a [loglevel.Change].
const LogLevelsPath = "/v1/log-levels"

func (s *Server) logLevels(context.Context, *http.Request, struct{}) ([]loglevel.Component, error) {
	return s.cfg.Levels.List(), nil
}

func (s *Server) setLogLevels(ctx context.Context, _ *http.Request, in loglevel.Change) ([]loglevel.Component, error) {
	if err := s.cfg.Levels.Set(in); err != nil {
		return nil, err
	}
	list := s.cfg.Levels.List()
	// A warning, which every level but one shows: a log that becomes silent says why.
	s.cfg.Logger.WarnContext(ctx, "log levels changed by a command", "levels", loglevel.Text(list))
	return list, nil
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.NotReady != nil {
		if why := s.cfg.NotReady(); len(why) > 0 {
			http.Error(w, "not ready:\n"+strings.Join(why, "\n"), http.StatusServiceUnavailable)
			return
		}
	}
	lines := []string{"ready"}
	if s.problem != nil && s.problem() != "" {
		lines = append(lines, s.problem())
	}
	if s.cfg.Remarks != nil {
		lines = append(lines, s.cfg.Remarks()...)
	}
	_, _ = w.Write([]byte(strings.Join(lines, "\n") + "\n"))
}

// maxRequest bounds the body of a request on admin.sock.
const maxRequest = 1 << 20

// JSON is a handler that reads a value, calls f, and answers with what f gives.
// An error is answered as text that a person can act on.
func JSON[In, Out any](f func(ctx context.Context, r *http.Request, in In) (Out, error)) http.Handler {
	return LargeJSON(maxRequest, f)
}

// LargeJSON is [JSON] for requests of up to so many bytes.
func LargeJSON[In, Out any](limit int64, f func(ctx context.Context, r *http.Request, in In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		if r.Method == http.MethodPost {
			d := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
			d.DisallowUnknownFields()
			if err := d.Decode(&in); err != nil {
				http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
				return
			}
		}
		out, err := f(r.Context(), r, in)
		if err != nil {
			status := http.StatusBadRequest
			if errors.Is(err, fs.ErrNotExist) {
				status = http.StatusNotFound
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})
}
