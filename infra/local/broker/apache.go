package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"oncehouse/infra/local/process"
)

// How long Apache Kafka may take to come up and to go down.
const (
	startTimeout = 60 * time.Second
	stopGrace    = 30 * time.Second
)

// ApacheConfig describes a real broker.
type ApacheConfig struct {
	// Cache is where the jars are kept: a directory that git ignores, made by
	// the first start. Required.
	Cache string
	// Dir keeps the broker's data; "" is a temporary directory that Close
	// removes.
	Dir string
	// Port is the broker's port; default a free one.
	Port int
	// HeapMB bounds the Java heap; default 512.
	HeapMB int
	// Log takes warnings and errors of the broker and of the set-up; nil
	// discards them.
	Log io.Writer
}

// ApacheBroker is Apache Kafka in a process of its own.
type ApacheBroker struct {
	cfg       ApacheConfig
	java      string
	jars      string
	temporary bool
	addr      string
	proc      *process.Process
}

// Apache starts Apache Kafka, after Setup where needed, and waits until it
// serves. On a directory with data it goes on from there. Errors are one line
// where something has to be installed, and end with the broker's own last
// words where it did not come up.
func Apache(ctx context.Context, cfg ApacheConfig) (*ApacheBroker, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, errors.New("Apache Kafka needs java and it is missing: install Java 17 or newer (for example apt install openjdk-17-jre-headless), or use the embedded broker")
	}
	jars, err := Setup(ctx, cfg.Cache, cfg.Log)
	if err != nil {
		return nil, err
	}
	b := &ApacheBroker{cfg: cfg, java: java, jars: jars}
	if b.cfg.HeapMB == 0 {
		b.cfg.HeapMB = 512
	}
	if b.cfg.Dir == "" {
		b.temporary = true
		if b.cfg.Dir, err = os.MkdirTemp("", "oncehouse-kafka-"); err != nil {
			return nil, fmt.Errorf("make a data directory: %w", err)
		}
	}
	err = b.prepare(ctx)
	if err == nil {
		err = b.Restart(ctx)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// prepare writes the settings and formats the storage of a new directory.
func (b *ApacheBroker) prepare(ctx context.Context) error {
	port := b.cfg.Port
	controller, err := process.FreePort()
	if port == 0 && err == nil {
		port, err = process.FreePort()
	}
	if err != nil {
		return err
	}
	b.addr = fmt.Sprintf("127.0.0.1:%d", port)
	if err := os.MkdirAll(b.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := os.WriteFile(b.settingsPath(), []byte(b.settings(controller)), 0o600); err != nil {
		return fmt.Errorf("write the broker's settings: %w", err)
	}
	if _, err := os.Stat(filepath.Join(b.logDir(), "meta.properties")); err == nil {
		return nil
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	format := exec.CommandContext(ctx, b.java, append(b.javaArgs(),
		"kafka.tools.StorageTool", "format", "--config", b.settingsPath(),
		"--cluster-id="+base64.RawURLEncoding.EncodeToString(id))...) // one word: the id may begin with a dash
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format the storage of Apache Kafka: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// settings are those of one node that is broker and controller, with the
// internal topics as small as one node can have them.
func (b *ApacheBroker) settings(controllerPort int) string {
	return strings.Join([]string{
		"process.roles=broker,controller",
		"node.id=1",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controllerPort),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", b.addr, controllerPort),
		"advertised.listeners=PLAINTEXT://" + b.addr,
		"controller.listener.names=CONTROLLER",
		"log.dirs=" + b.logDir(),
		"auto.create.topics.enable=false",
		"group.initial.rebalance.delay.ms=0",
		// After a kill the node comes back when its old session is over.
		"broker.session.timeout.ms=4000",
		"broker.heartbeat.interval.ms=500",
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=4",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"",
	}, "\n")
}

func (b *ApacheBroker) settingsPath() string { return filepath.Join(b.cfg.Dir, "server.properties") }

func (b *ApacheBroker) logDir() string { return filepath.Join(b.cfg.Dir, "data") }

// javaArgs are the options of a Java that starts quickly and stays small, and
// that prints warnings only.
func (b *ApacheBroker) javaArgs() []string {
	return []string{
		fmt.Sprintf("-Xmx%dm", b.cfg.HeapMB), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.showThreadName=false",
		"-Dlog4j2.level=ERROR",
		"-cp", filepath.Join(b.jars, "*"),
	}
}

// Addrs is its one loopback address: the same after a restart.
func (b *ApacheBroker) Addrs() []string { return []string{b.addr} }

// Pid is the broker's process.
func (b *ApacheBroker) Pid() int { return b.proc.Pid() }

// Restart starts the broker after Stop or Kill, on the same data and address,
// and waits until it serves.
func (b *ApacheBroker) Restart(ctx context.Context) error {
	proc, err := process.Start(process.Spec{
		Name: "Apache Kafka", Path: b.java, Dir: b.cfg.Dir, Output: b.cfg.Log,
		Args: append(b.javaArgs(), "kafka.Kafka", b.settingsPath()),
	})
	if err != nil {
		return err
	}
	b.proc = proc
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return proc.WaitReady(ctx, func(ctx context.Context) error { return ping(ctx, b.addr) })
}

// Stop shuts the broker down in order; its data stays.
func (b *ApacheBroker) Stop() { b.proc.Stop(stopGrace) }

// Kill ends the broker at once, as kill -9 does; its data stays as it is.
func (b *ApacheBroker) Kill() { b.proc.Kill() }

// Close ends the broker: in order where its data is kept, at once where it is
// thrown away.
func (b *ApacheBroker) Close() {
	switch {
	case b.proc == nil:
	case b.temporary:
		b.Kill()
	default:
		b.Stop()
	}
	if b.temporary {
		_ = os.RemoveAll(b.cfg.Dir) // a temporary directory: the system removes what stays
	}
}
