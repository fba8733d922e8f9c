package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// runs is how often each thing is done.
const runs = 6

// BenchmarkFigures measures everything, and writes the table to the file that
// BENCH_RESULTS names, and all values to that of BENCH_FIGURES. BENCH_ONLY=idle
// measures nothing but processes while nothing happens.
func BenchmarkFigures(b *testing.B) {
	envoytest.Binary(b)
	r := &report{}
	idle := os.Getenv("BENCH_ONLY") == "idle"
	if !idle {
		b.Run("first", func(b *testing.B) { first(b, r) })
	}
	if !idle {
		b.Run("consul", func(b *testing.B) { checks(b, r) })
	}
	b.Run("mesh", func(b *testing.B) {
		s := newShop(b)
		s.start()
		s.inStep()
		s.until(s.whole)
		measures := []func(*report){s.idle, s.rule, s.weights, s.restart, s.application, s.envoy, s.after}
		if idle {
			measures = measures[:1]
		}
		for _, measure := range measures {
			measure(r)
		}
	})
	if b.Failed() || len(r.figures) == 0 {
		return
	}
	text := r.markdown(time.Now())
	b.Log("\n" + text)
	if path := os.Getenv("BENCH_RESULTS"); path != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if path := os.Getenv("BENCH_FIGURES"); path != "" {
		if err := r.write(path); err != nil {
			b.Fatal(err)
		}
	}
}

// first is the time from nothing to the first request over mTLS.
func first(b *testing.B, r *report) {
	b.Helper()
	f := r.figure(figure{name: "First request over mTLS, 4 hosts", unit: "s", budget: 3.2, consul: "3.2 s", kuma: "7.7 s"})
	for i := range runs {
		b.Run(strconv.Itoa(i), func(b *testing.B) {
			s := newShop(b)
			begin := time.Now()
			s.start()
			s.until(s.whole)
			f.add(time.Since(begin).Seconds())
		})
	}
}

// idle is what the processes use while nothing happens.
func (s *shop) idle(r *report) {
	type kind struct {
		rss, own, cpu *figure
		pids          []int
	}
	add := func(name, unit string, budget float64, consul, kuma string) *figure {
		return r.figure(figure{name: "Idle: " + name, unit: unit, budget: budget, consul: consul, kuma: kuma})
	}
	kinds := []kind{
		{
			add("control plane, memory", "MB", 60, "118 MB", "121 MB"), add("control plane, of that its own", "MB", 0, "", ""),
			add("control plane, CPU", "%", 0.4, "0.6 %", "0.4 %"),
			[]int{s.Server.PID()},
		},
		{
			add("agent, memory", "MB", 30, "none", "73 MB"), add("agent, of that its own", "MB", 0, "", ""),
			add("agent, CPU", "%", 0, "none", "about 0"), nil,
		},
		{
			add("Envoy, memory", "MB", 68, "64 MB (1.36.2)", "68 MB"), add("Envoy, of that its own", "MB", 0, "", ""),
			add("Envoy, CPU", "%", 0, "0.3 %", "about 0"), nil,
		},
	}
	for _, h := range s.hosts {
		kinds[1].pids = append(kinds[1].pids, s.agents[h.Name].PID())
		kinds[2].pids = append(kinds[2].pids, s.EnvoyPID(h.Name))
	}
	const window = 4 * time.Second
	pause(window / 2)
	for range runs {
		before := map[int]usage{}
		for _, k := range kinds {
			for _, pid := range k.pids {
				before[pid] = usageOf(s.b, pid)
			}
		}
		began := time.Now()
		pause(window)
		took := time.Since(began)
		for _, k := range kinds {
			for _, pid := range k.pids {
				now := usageOf(s.b, pid)
				k.rss.add(now.rss)
				k.own.add(now.own)
				k.cpu.add(100 * float64(now.cpu-before[pid].cpu) / float64(took))
			}
		}
	}
}

// after is what agents hold that have gone through all of this.
func (s *shop) after(r *report) {
	rss := r.figure(figure{name: "After all of this: agent, memory", unit: "MB", consul: "none"})
	own := r.figure(figure{name: "After all of this: agent, of that its own", unit: "MB"})
	for _, h := range s.hosts {
		now := usageOf(s.b, s.agents[h.Name].PID())
		rss.add(now.rss)
		own.add(now.own)
	}
}

// rule changes a DestinationRule.
func (s *shop) rule(r *report) {
	total := r.figure(figure{name: "Changed DestinationRule, written to accepted", unit: "ms", budget: 1000})
	pushed := r.figure(figure{name: "Changed DestinationRule, published to accepted", unit: "ms", budget: 100})
	const plain = "  host: orders.shop.internal\n  subsets:"
	with := func(i int) string {
		return fmt.Sprintf("  host: orders.shop.internal\n  trafficPolicy: {connectionPool: {tcp: {connectTimeout: %dms}}}\n  subsets:", 1000+i)
	}
	now := plain
	for i := range 2 * runs {
		begin := time.Now()
		s.Edit("orders.yaml", now, with(i))
		now = with(i)
		var out struct {
			Done     bool    `json:"done"`
			Accepted int     `json:"accepted"`
			Seconds  float64 `json:"seconds"`
			Age      float64 `json:"age"` // of the newest change of the file
		}
		s.until(func() error {
			if err := s.ask("/v1/rollout"+filepath.Join(s.ConfigDir, "orders.yaml"), &out); err != nil {
				return err
			}
			if time.Since(begin).Seconds() < out.Age || !out.Done || out.Accepted == 0 {
				return fmt.Errorf("not accepted: %+v", out)
			}
			return nil
		})
		total.add(1000 * time.Since(begin).Seconds())
		pushed.add(1000 * out.Seconds)
		pause(300 * time.Millisecond)
	}
	s.Edit("orders.yaml", now, plain)
	s.inStep()
}

// split is the routes of orders with these weights.
func split(v1, v2 int) string {
	return fmt.Sprintf("subset: v1}\n      weight: %d\n    - destination: {host: orders.shop.internal, subset: v2}\n      weight: %d", v1, v2)
}

// weights turns all traffic from one version to the other, and back.
func (s *shop) weights(r *report) {
	f := r.figure(figure{name: "Weight edit to changed split at the client", unit: "s", budget: 1, consul: "0.25 to 0.28 s", kuma: "0.28 s, then 1.7 to 2.1 s"})
	failed := r.figure(figure{name: "Failed requests at a weight edit", limit: true, consul: "0 of 2,799", kuma: "0 of 5,200"})
	now := split(90, 10)
	for i := range 2*runs + 1 {
		next, gone := split(0, 100), "orders-v1"
		if i%2 == 1 {
			next, gone = split(100, 0), "orders-v2"
		}
		load := s.client.StartLoad(s.b, s.url, 200)
		load.Wait(s.b, 50)
		begin := time.Now()
		last := begin
		s.Edit("orders.yaml", now, next)
		now = next
		row := 0
		s.until(func() error {
			a, err := s.client.Get(s.b.Context(), s.url)
			if err != nil {
				return err
			}
			if row++; a.Next.Name == gone {
				last, row = time.Now(), 0
			}
			if row < 50 {
				return fmt.Errorf("%s answers", a.Next.Name)
			}
			return nil
		})
		if result := load.Stop(); i > 0 { // at first both had some
			f.add(last.Sub(begin).Seconds())
			failed.add(float64(result.Failed))
		}
	}
	s.Edit("orders.yaml", now, split(90, 10))
	s.inStep()
}

// restart kills the control plane and starts it again.
func (s *shop) restart(r *report) {
	failed := r.figure(figure{name: "Failed requests, control plane killed and restarted", limit: true, consul: "0 (-dev); 759 and 672 of 5,999", kuma: "0 of 5,000, then locked out"})
	back := r.figure(figure{name: "Control plane started to all proxies in step", unit: "s"})
	for range runs {
		load := s.client.StartLoad(s.b, s.url, 200)
		load.Wait(s.b, 100)
		s.Server.Kill()
		load.Wait(s.b, 200)
		begin := time.Now()
		s.StartServer()
		s.inStep()
		back.add(time.Since(begin).Seconds())
		load.Wait(s.b, 200)
		failed.add(float64(load.Stop().Failed))
	}
}

// evenly makes both versions of orders instances of one service, so that either
// can stand in for the other.
func (s *shop) evenly() {
	s.Edit("orders.yaml", "    - destination: {host: orders.shop.internal, "+split(90, 10), "    - destination: {host: orders.shop.internal}")
	s.inStep()
	pause(time.Second)
}

// avoided is when the last request failed, after the time given.
func avoided(result meshtest.Result, began time.Time) float64 {
	if result.Failed == 0 {
		return 0
	}
	return max(0, result.LastFailure.Sub(began).Seconds())
}

// application kills an application.
func (s *shop) application(r *report) {
	s.evenly()
	when := r.figure(figure{name: "Killed application avoided after", unit: "s", budget: 0.9, consul: "0.9 s", kuma: "6.2 s; not in 9 s"})
	failed := r.figure(figure{name: "Failed requests, application killed", budget: 75, consul: "75 of 2,400", kuma: "342 of 2,400"})
	for range runs {
		load := s.client.StartLoad(s.b, s.url, 200)
		load.Wait(s.b, 200)
		began := time.Now()
		s.apps["orders-v1"].Kill()
		s.until(func() error {
			by, err := s.proxies()
			if err == nil && by["orders-v1"].Health != "unhealthy" {
				err = errors.New("the killed application is not known")
			}
			return err
		})
		load.Wait(s.b, 400)
		result := load.Stop()
		when.add(avoided(result, began))
		failed.add(float64(result.Failed))
		s.apps["orders-v1"] = s.StartApp(s.host("orders-v1"))
		s.inStep()
		pause(time.Second)
	}
}

// quiet is how long an Envoy has to have lived to be started again at once; one
// that dies sooner is a fault, and the agent takes its time.
const quiet = 12 * time.Second

// envoy kills an Envoy.
func (s *shop) envoy(r *report) {
	when := r.figure(figure{name: "Killed Envoy avoided after", unit: "s", budget: 1.3, consul: "1.3 to 1.5 s", kuma: "10 s; not in 11 s"})
	failed := r.figure(figure{name: "Failed requests, Envoy killed", budget: 117, consul: "117 of 3,600", kuma: "483 and 526 of 2,800"})
	back := r.figure(figure{name: "Killed Envoy back after", unit: "s", budget: 1, consul: "4 s or less", kuma: "11 s; 28 s"})
	lived := map[string]time.Time{}
	for i := range runs {
		name := []string{"orders-v1", "orders-v2"}[i%2]
		pause(time.Until(lived[name].Add(quiet)))
		load := s.client.StartLoad(s.b, s.url, 200)
		load.Wait(s.b, 200)
		pid := s.EnvoyPID(name)
		began := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.b.Fatal(err)
		}
		s.until(func() error {
			_, err := s.client.Get(s.b.Context(), s.direct[name])
			return err
		})
		lived[name] = time.Now()
		back.add(lived[name].Sub(began).Seconds())
		s.inStep()
		load.Wait(s.b, 400)
		result := load.Stop()
		when.add(avoided(result, began))
		failed.add(float64(result.Failed))
		pause(time.Second)
	}
}
