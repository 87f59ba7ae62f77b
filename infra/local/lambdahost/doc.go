// Package lambdahost runs a Lambda function on one machine: the real bootstrap
// binary, started as Lambda starts it and spoken to through the real Runtime
// API over loopback. Nothing in the function knows the difference.
//
//	fn, err := lambdahost.New(lambdahost.Config{
//		Name:        "sink",
//		Bootstrap:   ".build/sink/bootstrap",
//		MemoryMB:    256,
//		Timeout:     30 * time.Second,
//		Concurrency: 4,
//		Env:         map[string]string{"ONCEHOUSE_TABLE": "clicks"},
//		Log:         os.Stderr,
//	})
//	if err != nil {
//		return err
//	}
//	defer fn.Close()
//	result, err := fn.Invoke(ctx, payload)
//
// An error of Invoke means that the function did not run (throttled, payload
// too large, host shut down) or that the caller left first. Everything that
// the function did, a time-out and a crash included, is a Result: look at
// FunctionError.
//
// # One environment
//
// An execution environment is one process in a process group of its own,
// behind a Runtime API of its own, with one event at a time. It is started
// when an event finds no idle one, is reused while it lives, and is never used
// again after its process died or was killed. Concurrency bounds how many
// there are; one event more is ErrThrottled, as under reserved concurrency.
//
// An invocation ends when the process asks for the next event or dies, not
// when it answers: until then its environment is busy. A caller that leaves
// (its context ends) does not stop the function, so that two invocations of
// one batch overlap as they do at Lambda.
//
// # Faults
//
// KillAny, Kill and KillDuring end an environment with SIGKILL at any moment,
// Freeze stops one in the middle of its event and Thaw has it go on,
// Config.OnInvoke tells when an event has been handed over, and to which
// process.
//
// # What is documented, and what is our reading
//
// Documented by AWS, or read in aws-lambda-go: the four Runtime API routes and
// their headers, 202 for answers, the environment variables, 6 MB request and
// response limits with their exact figures and error types, 10 s for the init
// phase, SIGTERM 500 ms before SIGKILL at shutdown for a function with an
// internal extension (lambda.WithEnableSIGTERM) and SIGKILL at once for any
// other, init billed, the START, END and REPORT lines.
//
// Our reading, because AWS does not say: an answer stands when the process
// dies after it, but is replaced by Sandbox.Timedout when the time-out comes
// before the next event is asked for (the harsher result for the caller); a
// time-out kills without SIGTERM.
//
// Not imitated: Lambda tries a failed init phase a second time inside the
// first invocation, throttles CPU with memory, kills above the memory size
// (MaxMemoryUsedMB shows by how much) and freezes an idle environment. The
// payload is not checked to be JSON, so that a cut event can be tried too.
package lambdahost
