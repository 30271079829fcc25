package peers;

import java.lang.reflect.Field;
import java.lang.reflect.Method;

/**
 * Wakes threads that were told to end but sleep on.
 *
 * <p>RocketMQ's NettyEventExecutor looks at its stop flag once in three seconds, and each client or
 * server that shuts down waits for one or more of them. Nothing on the wire depends on that nap.
 */
final class Hurry {
    private static final String SLEEPER = "NettyEventExecutor";
    private static final long PERIOD_MILLIS = 20;

    private Hurry() {
    }

    /** From now on, wakes such threads; the cost is one look at the thread list per period. */
    static void always() {
        Thread thread = new Thread(() -> {
            while (true) {
                try {
                    wakeStopped();
                    Thread.sleep(PERIOD_MILLIS);
                } catch (InterruptedException | RuntimeException error) {
                    return;
                }
            }
        }, "hurry");
        thread.setDaemon(true);
        thread.start();
    }

    private static void wakeStopped() {
        Thread[] threads = new Thread[Thread.activeCount() * 2 + 16];
        int count = Thread.enumerate(threads);
        for (int i = 0; i < count; i++) {
            if (threads[i].getName().endsWith(SLEEPER) && isStopped(threads[i])) {
                threads[i].interrupt();
            }
        }
    }

    private static boolean isStopped(Thread thread) {
        try {
            Object service = task(thread);
            if (service == null) {
                return false;
            }
            Method method = service.getClass().getMethod("isStopped");
            method.setAccessible(true);
            return (Boolean) method.invoke(service);
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            return false;
        }
    }

    /** The Runnable of a thread: a field of Thread up to Java 20, of its holder since. */
    private static Object task(Thread thread) throws ReflectiveOperationException {
        try {
            return field(Thread.class, "target").get(thread);
        } catch (NoSuchFieldException newer) {
            Object holder = field(Thread.class, "holder").get(thread);
            return field(holder.getClass(), "task").get(holder);
        }
    }

    private static Field field(Class<?> owner, String name) throws NoSuchFieldException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}
